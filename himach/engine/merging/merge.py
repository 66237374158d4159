"""The merge: turns blocks of any ranks into one series per key, several shards at a time.

Rows are grouped by hashing and counting. Each key's rows come as about one sorted list per rank and are merged into the
order of frames if ranks overlap in time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.merging.grouping import merge_rows
from himach.engine.merging.merge_input import Group, KeyBatch, Rows, as_keys, as_rows, check_rows, joined
from himach.engine.merging.presence import merge_presence
from himach.engine.merging.series import ManySeries, Series
from himach.engine.pairs.block import Block, Column, Form, Kind, objects, plain_keys, raw
from himach.engine.pairs.keys import ENCODED
from himach.engine.stamps import Frames
from himach.selection import Selected

#: Most pairs merged at a time, unless a single shard has more.
MAX_PAIRS_AT_A_TIME = 1 << 16
#: Bytes of a value that is moved together with its row number.
CARRIED_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Keyed:
    """Keys and their `series`; `width` is that of `himach.engine.pairs.block.Block`."""

    width: int
    keys: Any
    plain: list[Any]
    series: ManySeries


class Merge:
    """Blocks of the same shards, readable key by key."""

    def __init__(self, sources: Sequence[Sequence[Block]], frames: Frames, numbers: Selected) -> None:
        self._numbers = numbers
        self._table = frames.table
        self._encoded = _SeriesNumbers()
        blocks_by_kind: dict[int, dict[Kind, list[tuple[int, Block]]]] = {}
        for rank, blocks in enumerate(sources):
            for block in blocks:
                numbered = self._numbered(block) if block.width == ENCODED else block
                blocks_by_kind.setdefault(block.width, {}).setdefault(block.kind, []).append((rank, numbered))
        self._widths: list[tuple[int, list[KeyBatch]]] = []
        for width, kinds in sorted(blocks_by_kind.items()):
            # Within a frame, bits and intervals precede all else.
            ordered = sorted(kinds, key=lambda kind: (kind.form == Form.PAIR, kind.form))
            self._widths.append((width, [KeyBatch(kind, kinds[kind], frames.places) for kind in ordered]))
        self._names = objects(list(self._encoded))

    def groups(self) -> Iterator[tuple[Any, Series]]:
        """Yield every key once, with its series."""
        for group in self.many():
            yield from zip(group.plain, group.series, strict=True)

    def many(self) -> Iterator[Keyed]:
        """Yield every key once, with its series, many at a time."""
        for group in self._groups():
            series = ManySeries(self._table, self._numbers, group.bounds, group.at, group.values)
            encoded = group.width == ENCODED
            plain = plain_keys(group.width, self._names[group.keys] if encoded else group.keys)
            yield Keyed(group.width, plain if encoded else group.keys, plain, series)

    def _numbered(self, block: Block) -> Block:
        """Return a block with numbers in place of encoded keys."""
        return replace(block, keys=np.fromiter(map(self._encoded.__getitem__, block.keys), np.int64, len(block)))

    def _groups(self) -> Iterator[Group]:
        for width, batches in self._widths:
            for start, stop in _spans(batches):
                present = [batch for batch in batches if batch.has(start, stop)]
                if all(batch.presence for batch in present):
                    parts = [part for batch in present for part in batch.parts(start, stop)]
                    yield from merge_presence(width, parts, len(self._table))
                elif len(present) == 1:
                    yield _merge_uniform(width, present[0], start, stop)
                else:
                    yield from merge_mixed(width, present, start, stop, len(self._table))


class _SeriesNumbers(dict[bytes, int]):
    """Numbers keys in the order of their first lookup."""

    def __missing__(self, key: bytes) -> int:
        number = self[key] = len(self)
        return number


def _spans(batches: Sequence[KeyBatch]) -> Iterator[tuple[int, int]]:
    """Yield ranges of shards that have pairs: about `MAX_PAIRS_AT_A_TIME` pairs each, or one shard."""
    stops = np.cumsum(sum(batch.weights for batch in batches)).tolist()
    start, done = 0, 0
    for shard, stop in enumerate(stops):
        last = shard + 1 == len(stops)
        if stop > done and (last or stops[shard + 1] - done > MAX_PAIRS_AT_A_TIME):
            yield start, shard + 1
            start, done = shard + 1, stop


def _merge_uniform(width: int, batch: KeyBatch, start: int, stop: int) -> Group:
    """Merge rows whose values have one layout."""
    parts = list(batch.parts(start, stop))
    columns = [part.values for part in parts]
    # Values of the size of a row number are moved instead of it; others are taken by it.
    small = batch.row_bytes == CARRIED_VALUE_BYTES
    carried = [raw(column).view(np.uint32) for column in columns] if small else _row_numbers(list(map(len, parts)))
    keys, bounds, at, carried_merged = merge_rows(
        [as_rows(part.keys) for part in parts], [part.at for part in parts], [part.places for part in parts], carried
    )
    if small:
        values = carried_merged.view(columns[0].dtype).reshape(-1, *columns[0].shape[1:])
    else:
        values = joined(columns).take(carried_merged, axis=0)
    return Group(width, as_keys(keys, width), bounds, at, values)


def _row_numbers(counts: Sequence[int]) -> list[Rows]:
    stops = np.cumsum(counts).tolist()
    check_rows(stops[-1])
    return [np.arange(stop - count, stop, dtype=np.uint32) for stop, count in zip(stops, counts, strict=True)]


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
