"""Where two files that should be equal differ first: `difference()`, in words of what the files hold."""

from __future__ import annotations

import csv
import itertools
import math
from contextlib import suppress
from pathlib import Path

import numpy as np

PIECE = 1 << 20
#: Suffixes of files that are text, lines of it.
TEXT = frozenset({".json", ".txt", ".pdb", ".dx", ".md", ".tex", ".bib", ".svg", ".xvg", ".html"})
LONGEST = 60  # characters of a cell or a line that are shown


def difference(then: Path, now: Path) -> str:
    """Return where a file differs first from what it was; "" if all bytes are equal.

    Of a table by line and column, with how many cells differ, and by how much at most; of an array by index, of text by
    line, and of anything else by byte.
    """
    place = _first_byte(then, now)
    if place < 0:
        return ""
    told = ""
    with suppress(ValueError, csv.Error, OSError, EOFError, MemoryError):  # no table, array or text: bytes
        if then.suffix == ".csv":
            told = _of_tables(then, now)
        elif then.suffix == ".npy":
            told = _of_arrays(then, now)
        elif then.suffix in TEXT:
            told = _of_lines(then, now)
    sizes = then.stat().st_size, now.stat().st_size
    lengths = f"of {sizes[0]:,}" if sizes[0] == sizes[1] else f"of {sizes[0]:,}, and of {sizes[1]:,} now"
    return told or f"from byte {place + 1:,} on {lengths}"


def _first_byte(then: Path, now: Path) -> int:
    """Return the place of the first byte that differs, -1 if there is none."""
    with then.open("rb") as before, now.open("rb") as after:
        for place in itertools.count(0, PIECE):
            a, b = before.read(PIECE), after.read(PIECE)
            if a != b:
                return place + next(i for i, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y)
            if not a:
                break
    return -1


def _of_tables(then: Path, now: Path) -> str:
    with then.open(newline="", encoding="utf-8") as one, now.open(newline="", encoding="utf-8") as other:
        rows = itertools.zip_longest(csv.reader(one), csv.reader(other))
        header, named = next(rows)
        if header != named:
            return f"its columns were {_short(','.join(header or []))}, and are {_short(','.join(named or []))}"
        first, cells, lengths, most = "", 0, [1, 1], 0.0
        for line, (before, after) in enumerate(rows, 2):
            lengths = [
                line if row is not None else length for row, length in zip((before, after), lengths, strict=True)
            ]
            for at, (x, y) in enumerate(itertools.zip_longest(before or (), after or (), fillvalue="")):
                if x != y and before is not None and after is not None:
                    cells, most = cells + 1, max(most, _apart(x, y))
                    column = header[at] if at < len(header) else at + 1
                    first = first or f"line {line}, column {column}: it was {_short(x)}, and is {_short(y)}"
    if lengths[0] != lengths[1]:
        rest = f"it had {lengths[0]:,} lines, and has {lengths[1]:,}"
        return f"{first}; {rest}" if first else rest
    size = "" if math.isinf(most) else f", by a part of {most:.1g} at most"
    return f"{first}; {cells:,} cells differ{size}" if cells > 1 else first  # none: quotes or ends of lines differ


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
    nan = np.isnan(a) & np.isnan(b) if a.dtype.kind in "fc" else False
    unequal = np.argwhere((a != b) & ~np.asarray(nan))
    if not len(unequal):
        return ""
    first = tuple(unequal[0].tolist())
    return f"at {list(first)}: it was {a[first]}, and is {b[first]}; {len(unequal):,} of {a.size:,} values differ"


def _of_lines(then: Path, now: Path) -> str:
    with then.open(encoding="utf-8", newline="") as one, now.open(encoding="utf-8", newline="") as other:
        for number, (x, y) in enumerate(itertools.zip_longest(one, other), 1):
            if x is None or y is None:
                return f"from line {number} on, which only {'the new one' if x is None else 'the earlier one'} has"
            if x != y:
                at = next(i for i, (a, b) in enumerate(itertools.zip_longest(x, y)) if a != b)
                around = slice(max(0, at - 20), at + 20)
                return f"line {number}: it was {_short(x[around])!r}, and is {_short(y[around])!r}"
    return ""


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
