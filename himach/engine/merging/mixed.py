"""Merges rows whose values are of several layouts: each key's values become an array where they can, else a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.merging.grouping import merge_rows
from himach.engine.merging.parts import Group, KeyBatch, as_keys, as_rows, check_rows
from himach.engine.pairs.block import Column


def merge_mixed(width: int, lots: Sequence[KeyBatch], start: int, stop: int, frames: int) -> Iterator[Group]:
    """Give the keys of the shards from `start` to `stop` one by one; there are `frames` frames on all ranks."""
    pairs_of_lots = [lot.pairs(start, stop) for lot in lots]
    keys, at, order = (np.concatenate([pairs[column] for pairs in pairs_of_lots]) for column in range(3))
    lot_of = np.repeat(np.arange(len(pairs_of_lots)), [len(pairs[1]) for pairs in pairs_of_lots])
    row_of = np.concatenate([np.arange(len(pairs[1])) for pairs in pairs_of_lots])
    check_rows(len(at))
    emitted = np.lexsort((order, at))  # stable: presence as bits comes before all else in its frame
    keys, at, lot_of, row_of = keys[emitted], at[emitted], lot_of[emitted], row_of[emitted]
    numbers, unmoved = np.arange(len(at), dtype=np.uint32), np.arange(frames, dtype=np.uint32)
    groups, bounds, at, rows = merge_rows([as_rows(keys)], [at], [unmoved], [numbers])
    keys = as_keys(groups, width)
    lot_of, row_of = lot_of[rows], row_of[rows]
    columns = [pairs[3] for pairs in pairs_of_lots]
    for group in range(len(keys)):
        a, b = int(bounds[group]), int(bounds[group + 1])
        values = _picked(columns, lot_of[a:b], row_of[a:b])
        yield Group(width, keys[group : group + 1], np.array([0, b - a]), at[a:b], values)


def _picked(columns: Sequence[Column], lot_of: npt.NDArray[np.int64], row_of: npt.NDArray[np.int64]) -> Column:
    """Return one key's values; an object array where they are of several layouts."""
    used = [columns[lot] for lot in np.unique(lot_of).tolist()]
    if all(column is None for column in used):
        return None
    first = used[0]
    if len(used) == 1 and first is not None:
        uniform: npt.NDArray[Any] = first[row_of]
        return uniform
    picked = np.empty(len(lot_of), dtype=object)
    for place, (lot, row) in enumerate(zip(lot_of.tolist(), row_of.tolist(), strict=True)):
        column = columns[lot]
        value = None if column is None else column[row]
        picked[place] = value.copy() if isinstance(value, np.ndarray | np.void) else value
    return picked
