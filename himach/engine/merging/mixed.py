"""Merges rows whose values have several layouts: each key's values become an array if possible, else a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.merging.grouping import merge_rows
from himach.engine.merging.parts import Group, KeyBatch, as_keys, as_rows, check_rows
from himach.engine.pairs.block import Column


def merge_mixed(width: int, batches: Sequence[KeyBatch], start: int, stop: int, frames: int) -> Iterator[Group]:
    """Yield the keys of the shards from `start` to `stop` one by one; `frames` is the number on all ranks."""
    batch_pairs = [batch.pairs(start, stop) for batch in batches]
    keys, at, order = (np.concatenate([pairs[column] for pairs in batch_pairs]) for column in range(3))
    batch_of = np.repeat(np.arange(len(batch_pairs)), [len(pairs[1]) for pairs in batch_pairs])
    row_of = np.concatenate([np.arange(len(pairs[1])) for pairs in batch_pairs])
    check_rows(len(at))
    emitted = np.lexsort((order, at))  # stable: bits precede all else in their frame
    keys, at, batch_of, row_of = keys[emitted], at[emitted], batch_of[emitted], row_of[emitted]
    numbers, unmoved = np.arange(len(at), dtype=np.uint32), np.arange(frames, dtype=np.uint32)
    groups, bounds, at, rows = merge_rows([as_rows(keys)], [at], [unmoved], [numbers])
    keys = as_keys(groups, width)
    batch_of, row_of = batch_of[rows], row_of[rows]
    columns = [pairs[3] for pairs in batch_pairs]
    for group in range(len(keys)):
        a, b = int(bounds[group]), int(bounds[group + 1])
        values = _pick_values(columns, batch_of[a:b], row_of[a:b])
        yield Group(width, keys[group : group + 1], np.array([0, b - a]), at[a:b], values)


def _pick_values(columns: Sequence[Column], batch_of: npt.NDArray[np.int64], row_of: npt.NDArray[np.int64]) -> Column:
    """Return one key's values; an object array if they have several layouts."""
    used = [columns[batch] for batch in np.unique(batch_of).tolist()]
    if all(column is None for column in used):
        return None
    first = used[0]
    if len(used) == 1 and first is not None:
        uniform: npt.NDArray[Any] = first[row_of]
        return uniform
    picked = np.empty(len(batch_of), dtype=object)
    for place, (batch, row) in enumerate(zip(batch_of.tolist(), row_of.tolist(), strict=True)):
        column = columns[batch]
        value = None if column is None else column[row]
        picked[place] = value.copy() if isinstance(value, np.ndarray | np.void) else value
    return picked
