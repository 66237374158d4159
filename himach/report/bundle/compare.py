"""Where two files that should be equal differ first: `difference()`, in words of what the files hold."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

__all__ = ["difference"]

PIECE = 1 << 20
#: Suffixes of files that are text, lines of it.
TEXT = frozenset({".json", ".txt", ".pdb", ".dx", ".md", ".tex", ".bib", ".svg", ".xvg", ".html"})
LONGEST = 60  # characters of a cell or a line that are shown


def difference(then: Path, now: Path) -> str:
    """Return where a file differs first from what it was; "" if all bytes are equal.

    Of a table that is told by line and column, with how many cells differ, and by how much at most; of an array by
    index, of text by line, and of anything else by byte.
    """
    with then.open("rb") as one, now.open("rb") as other:
        place = _first_byte(one, other)
    if place is None:
        return ""
    told = ""
    try:
        if then.suffix == ".csv":
            told = _of_tables(then, now)
        elif then.suffix == ".npy":
            told = _of_arrays(then, now)
        elif then.suffix in TEXT:
            told = _of_lines(then, now)
    except (ValueError, csv.Error, OSError, EOFError, MemoryError):  # no table, array or text: bytes
        told = ""
    sizes = then.stat().st_size, now.stat().st_size
    lengths = f"of {sizes[0]:,}" if sizes[0] == sizes[1] else f"of {sizes[0]:,}, and of {sizes[1]:,} now"
    return told or f"from byte {place + 1:,} on {lengths}"


def _first_byte(one: BinaryIO, other: BinaryIO) -> int | None:
    """Return the place of the first byte that differs, None if there is none."""
    place = 0
    while True:
        a, b = one.read(PIECE), other.read(PIECE)
        if a != b:
            pairs = itertools.zip_longest(a, b)
            return place + next(i for i, (x, y) in enumerate(pairs) if x != y)
        if not a:
            return None
        place += len(a)


def _of_tables(then: Path, now: Path) -> str:
    with then.open(newline="", encoding="utf-8") as one, now.open(newline="", encoding="utf-8") as other:
        before, after = csv.reader(one), csv.reader(other)
        header, named = next(before, []), next(after, [])
        if header != named:
            return f"its columns were {_short(','.join(header))}, and are {_short(','.join(named))}"
        first, cells, lines, most = "", 0, [1, 1], 0.0
        for rows in itertools.zip_longest(before, after):
            lines = [count + (row is not None) for count, row in zip(lines, rows, strict=True)]
            a, b = rows
            if a is None or b is None:
                continue
            for name, x, y in _cells(header, a, b):
                cells += 1
                most = max(most, _apart(x, y))
                first = first or f"line {max(lines)}, column {name}: it was {_short(x)}, and is {_short(y)}"
    if lines[0] != lines[1]:
        rest = f"it had {lines[0]:,} lines, and has {lines[1]:,}"
        return f"{first}; {rest}" if first else rest
    if not first:  # quotes or ends of lines
        return ""
    if cells == 1:
        return first
    size = "" if math.isinf(most) else f", by a part of {most:.1g} at most"
    return f"{first}; {cells:,} cells differ{size}"


def _cells(header: list[str], a: list[str], b: list[str]) -> Iterator[tuple[str, str, str]]:
    """Give the cells of a row that differ: column, what it was and what it is."""
    for at, (x, y) in enumerate(itertools.zip_longest(a, b, fillvalue="")):
        if x != y:
            yield header[at] if at < len(header) else str(at + 1), x, y


def _apart(x: str, y: str) -> float:
    """Return by which part of the larger one two numbers differ; infinity for what are none."""
    try:
        a, b = float(x), float(y)
    except ValueError:
        return math.inf
    apart = abs(a - b) / max(abs(a), abs(b), 1e-300)
    return apart if math.isfinite(apart) else math.inf


def _of_arrays(then: Path, now: Path) -> str:
    a, b = (np.load(path, mmap_mode="r", allow_pickle=False) for path in (then, now))
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"it was an array {a.shape} of {a.dtype}, and is one {b.shape} of {b.dtype}"
    same = a == b
    unequal = ~(same | (np.isnan(a) & np.isnan(b)) if a.dtype.kind in "fc" else same)
    if not unequal.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(unequal)[0])
    return f"at {list(first)}: it was {a[first]}, and is {b[first]}; {int(unequal.sum()):,} of {a.size:,} values differ"


def _of_lines(then: Path, now: Path) -> str:
    with open(then, encoding="utf-8", newline="") as one, open(now, encoding="utf-8", newline="") as other:
        for number, (x, y) in enumerate(itertools.zip_longest(one, other), 1):
            if x != y:
                if x is None or y is None:
                    return f"from line {number} on, which only {'the new one' if x is None else 'the earlier one'} has"
                at = next(i for i, (a, b) in enumerate(itertools.zip_longest(x, y)) if a != b)
                around = slice(max(0, at - 20), at + 20)
                return f"line {number}: it was {_short(x[around])!r}, and is {_short(y[around])!r}"
    return ""


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
