"""Results of a part on their way back from a rank: `lean()`, the same in fewer pieces.

Some analyses collect numpy's numbers one by one in lists of lists. Pickled, each is an object of its own, which
takes longer than reading the frame; here they travel as an array, and arrive as the lists that they were.
"""

from __future__ import annotations

from copy import copy
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from MDAnalysis.analysis.results import Results

__all__ = ["lean"]

#: Numbers whose bits an array keeps, and gives out as the same type.
NUMBERS = (np.float64, np.float32, np.int64, np.int32, np.bool_)
FEW_NUMBERS = 64  # numbers, or lists, that may well travel by themselves


def lean(results: Results) -> Results:
    """Return results that unpickle as these would."""
    if type(results) is not Results:
        return results
    found = copy(results)
    for name, value in results.items():
        found[name] = _lean(value)
    return found


def _lean(value: Any) -> Any:
    """Return what unpickles as `value`: itself, or numbers of one type, in lists of one length at each depth."""
    if type(value) is not list:
        return value
    kinds: list[tuple[type, int]] = []
    items: list[Any] = value
    while len(types := set(map(type, items))) == 1:
        (kind,) = types
        if kind in NUMBERS:
            return value if len(items) < FEW_NUMBERS else _Numbers(np.array(items, dtype=kind), kinds)
        if kind not in (list, tuple):
            break
        first, *others = set(map(len, items))
        if others or not first:
            break
        kinds.append((kind, first))
        items = list(chain.from_iterable(items))
    return value if len(value) > FEW_NUMBERS else [_lean(one) for one in value]


class _Numbers:
    """In place of a list of numbers, or of lists or tuples of these; `kinds` has type and length of each inner one."""

    def __init__(self, numbers: npt.NDArray[Any], kinds: list[tuple[type, int]]) -> None:
        self._numbers, self._kinds = numbers, kinds

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_it_was, (self._numbers, self._kinds)


def _as_it_was(numbers: npt.NDArray[Any], kinds: list[tuple[type, int]]) -> list[Any]:
    """Return the list."""
    items = list(numbers)
    for kind, length in reversed(kinds):
        rows = zip(*[iter(items)] * length, strict=True)
        items = list(rows) if kind is tuple else [list(row) for row in rows]
    return items
