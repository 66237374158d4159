"""The first difference of two files that should be equal: `difference()` describes it by their content."""

from __future__ import annotations

import csv
import itertools
import math
from contextlib import suppress
from pathlib import Path

import numpy as np

PIECE = 1 << 20
#: Suffixes of text files, which are compared by lines.
TEXT = frozenset({".json", ".txt", ".pdb", ".dx", ".md", ".tex", ".bib", ".svg", ".xvg", ".html"})
LONGEST = 60  # characters shown of a cell or a line


def difference(old: Path, new: Path) -> str:
    """Describe the first difference of two files; "" if all bytes are equal.

    A table differs by line and column, with the number of cells and the largest difference; an array by index, text by
    line, anything else by byte.
    """
    offset = _first_byte(old, new)
    if offset < 0:
        return ""
    description = ""
    with suppress(ValueError, csv.Error, OSError, EOFError, MemoryError):  # no table, array or text: compare bytes
        if old.suffix == ".csv":
            description = _compare_tables(old, new)
        elif old.suffix == ".npy":
            description = _compare_arrays(old, new)
        elif old.suffix in TEXT:
            description = _compare_lines(old, new)
    sizes = old.stat().st_size, new.stat().st_size
    lengths = f"of {sizes[0]:,}" if sizes[0] == sizes[1] else f"of {sizes[0]:,}, and of {sizes[1]:,} now"
    return description or f"from byte {offset + 1:,} on {lengths}"


def _first_byte(old: Path, new: Path) -> int:
    """Return the offset of the first byte that differs; -1 if there is none."""
    with old.open("rb") as before, new.open("rb") as after:
        for offset in itertools.count(0, PIECE):
            a, b = before.read(PIECE), after.read(PIECE)
            if a != b:
                return offset + next(i for i, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y)
            if not a:
                break
    return -1


def _compare_tables(old: Path, new: Path) -> str:
    with old.open(newline="", encoding="utf-8") as old_file, new.open(newline="", encoding="utf-8") as new_file:
        rows = itertools.zip_longest(csv.reader(old_file), csv.reader(new_file))
        header, current = next(rows)
        if header != current:
            return f"its columns were {_shorten(','.join(header or []))}, and are {_shorten(','.join(current or []))}"
        first, cells, lengths, most = "", 0, [1, 1], 0.0
        for line, (before, after) in enumerate(rows, 2):
            lengths = [
                line if row is not None else length for row, length in zip((before, after), lengths, strict=True)
            ]
            for index, (x, y) in enumerate(itertools.zip_longest(before or (), after or (), fillvalue="")):
                if x != y and before is not None and after is not None:
                    cells, most = cells + 1, max(most, _relative_difference(x, y))
                    column = header[index] if index < len(header) else index + 1
                    first = first or f"line {line}, column {column}: it was {_shorten(x)}, and is {_shorten(y)}"
    if lengths[0] != lengths[1]:
        lengths_text = f"it had {lengths[0]:,} lines, and has {lengths[1]:,}"
        return f"{first}; {lengths_text}" if first else lengths_text
    size = "" if math.isinf(most) else f", by a part of {most:.1g} at most"
    return f"{first}; {cells:,} cells differ{size}" if cells > 1 else first  # no cell: quotes or line ends differ


def _relative_difference(x: str, y: str) -> float:
    """Return the difference of two numbers relative to the larger one; infinity if one is no number."""
    try:
        a, b = float(x), float(y)
    except ValueError:
        return math.inf
    relative = abs(a - b) / max(abs(a), abs(b), 1e-300)
    return relative if math.isfinite(relative) else math.inf


def _compare_arrays(old: Path, new: Path) -> str:
    a, b = (np.load(path, mmap_mode="r", allow_pickle=False) for path in (old, new))
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"it was an array {a.shape} of {a.dtype}, and is one {b.shape} of {b.dtype}"
    both_nan = np.isnan(a) & np.isnan(b) if a.dtype.kind in "fc" else False
    unequal = np.argwhere((a != b) & ~np.asarray(both_nan))
    if not len(unequal):
        return ""
    first = tuple(unequal[0].tolist())
    return f"at {list(first)}: it was {a[first]}, and is {b[first]}; {len(unequal):,} of {a.size:,} values differ"


def _compare_lines(old: Path, new: Path) -> str:
    with old.open(encoding="utf-8", newline="") as old_file, new.open(encoding="utf-8", newline="") as new_file:
        for number, (x, y) in enumerate(itertools.zip_longest(old_file, new_file), 1):
            if x is None or y is None:
                return f"from line {number} on, which only {'the new one' if x is None else 'the earlier one'} has"
            if x != y:
                index = next(i for i, (a, b) in enumerate(itertools.zip_longest(x, y)) if a != b)
                around = slice(max(0, index - 20), index + 20)
                return f"line {number}: it was {_shorten(x[around])!r}, and is {_shorten(y[around])!r}"
    return ""


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
