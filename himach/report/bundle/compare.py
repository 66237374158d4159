"""The first difference of two files that should be equal: `difference()` describes it by their content."""

import csv
import math
from collections import deque
from contextlib import suppress
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

LONGEST = 60  # characters shown of a cell


def difference(old: Path, new: Path) -> str:
    """Describe the first difference of two files; "" if all bytes are equal.

    A table differs by line and column, with the number of cells and the largest difference; anything else by byte.
    """
    before, after = (np.fromfile(path, np.uint8) for path in (old, new))
    shared = min(len(before), len(after))
    differs = before[:shared] != after[:shared]
    if len(before) == len(after) and not differs.any():
        return ""
    description = ""
    if old.suffix == ".csv":
        with suppress(ValueError, csv.Error):  # no table: compare bytes
            description = _compare_tables(old, new)
    offset = int(differs.argmax()) if differs.any() else shared
    now = "" if len(before) == len(after) else f", and of {len(after):,} now"
    return description or f"from byte {offset + 1:,} on of {len(before):,}{now}"


def _compare_tables(old: Path, new: Path) -> str:
    with old.open(newline="", encoding="utf-8") as old_file, new.open(newline="", encoding="utf-8") as new_file:
        old_rows, new_rows = csv.reader(old_file), csv.reader(new_file)
        header, current = next(old_rows, []), next(new_rows, [])
        if header != current:
            return f"its columns were {_shorten(','.join(header))}, and are {_shorten(','.join(current))}"
        first, cells, most = "", 0, 0.0
        for before, after in zip(old_rows, new_rows, strict=False):
            for index, (x, y) in enumerate(zip_longest(before, after, fillvalue="")):
                if x != y:
                    cells, most = cells + 1, max(most, _relative_difference(x, y))
                    place = f"line {old_rows.line_num}, column {header[index] if index < len(header) else index + 1}"
                    first = first or f"{place}: it was {_shorten(x)}, and is {_shorten(y)}"
        deque(chain(old_rows, new_rows), maxlen=0)  # to the end of the longer one
        lengths = old_rows.line_num, new_rows.line_num
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


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
