"""Tables of scripts' ways: `cases()`, and the script of a way: `text_of()`."""

from __future__ import annotations

import re

from himach.examples import sample

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
    """Return ways by name: what is to be told of each, what stands before the class, in it, in setup() and in map()."""
    ways, name, part = {}, "", ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            part = line[:10].strip(" :") or part
            ways[name][part].append(line[10:])
        else:
            name, _, named = line.partition(": ")
            assert name not in ways, name
            ways[name] = {"named": named, "before": [], "class": [], "setup": [], "map": []}
    return ways


def text_of(way, value="V"):
    """Return the script of a way, with a value where it says V."""
    parts = {
        "before": "\n".join(way["before"]),
        "class": "\n    ".join(way["class"] or ["pass"]),
        **{name: "\n        ".join(way[name] or ["pass"]) for name in ("setup", "map")},
    }
    text = SCRIPT.format(**parts)
    text = text.replace("{topology!r}", TOPOLOGY).replace("{trajectory!r}", TRAJECTORY)
    return re.sub(r"(?<![a-zA-Z])V(?![a-zA-Z])", value, text)
