"""Tables of cases, `cases()`, and the script of a case, `text_of()`."""

import re

from himach.examples import sample

FIELD = re.compile(r" \| (before|class|setup|map): ")
SCRIPT = """
import collections, contextvars, copy, csv, ctypes, dataclasses, decimal, enum, functools, inspect, io, itertools
import logging, operator, os, pickle, queue, random, re, sqlite3, sys, threading, types, weakref
import numpy as np
import MDAnalysis
import himach
{before}
class Mine(himach.Analysis):
    {class}
    def setup(self, u):
        self.ca = u.select_atoms("name CA")
        {setup}
    def map(self, frame):
        {map}
"""
TRAJECTORY, TOPOLOGY = (repr(str(path)) for path in sample("villin"))


def cases(text):
    """Return cases by name: the expectation, and lines before the class, in it, in setup() and in map().

    A case is ``NAME: EXPECTATION | before: CODE | class: CODE | setup: CODE | map: CODE``; indented lines continue it.
    """
    table, case, part = {}, {}, ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            part = line[:10].strip(" :") or part
            code, *fields = FIELD.split(line[10:])
            case[part].append(code)
        else:
            title, *fields = FIELD.split(line)
            name, _, expected = title.partition(": ")
            assert name not in table, name
            case = table[name] = {"expected": expected, "before": [], "class": [], "setup": [], "map": []}
        for part, code in zip(fields[::2], fields[1::2], strict=True):
            case[part].append(code)
    return table


def text_of(case, value="V"):
    """Return the script of a case, with a value where it says V."""
    parts = {
        "before": "\n".join(case["before"]),
        "class": "\n    ".join(case["class"] or ["pass"]),
        **{name: "\n        ".join(case[name] or ["pass"]) for name in ("setup", "map")},
    }
    text = SCRIPT.format(**parts)
    text = text.replace("{topology!r}", TOPOLOGY).replace("{trajectory!r}", TRAJECTORY)
    return re.sub(r"(?<![a-zA-Z])V(?![a-zA-Z])", value, text)
