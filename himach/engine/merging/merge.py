"""The merge: blocks of any ranks become, some shards at a time, one series per key.

Rows are grouped by hashing and counting. Each key's rows come as one sorted list a rank, more or less, and are merged
into the order of frames where ranks overlap in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.merging.bitmaps import (
    Bitmaps,
    Plan,
    count_bits,
    expand_bits,
    expand_intervals,
    expand_rows,
    sort_frames,
)
from himach.engine.merging.grouping import group_rows, merge_rows
from himach.engine.merging.series import ManySeries, Series
from himach.engine.pairs.block import Block, Bounds, Column, Form, Kind, gathered, raw
from himach.engine.pairs.keys import ENCODED, decode
from himach.engine.pairs.sharding import renumber
from himach.engine.pairs.stamps import Frames
from himach.errors import AnalysisError

__all__ = ["Keyed", "Merge"]

#: Pairs that are merged at a time: so many shards as have no more than this, or one.
SPAN = 1 << 16
#: Frames of presence that are written out at a time, if there is more than one key.
EXPANDED = 1 << 23

#: Bytes of a value that travels with its row while rows are ordered.
CARRIED = 4
#: Pairs that are merged at a time, at most: their rows are numbered by uint32.
MOST = 2**32 - 1

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class _Group:
    """Some keys with their rows: those of key i are ``bounds[i]:bounds[i + 1]``, in the order of frames."""

    width: int
    keys: Keys
    bounds: Bounds
    at: Rows
    values: Any


@dataclass(frozen=True, slots=True)
class Keyed:
    """Keys and their series.

    Attributes
    ----------
    width
        See `himach.engine.pairs.block.Block`.
    keys
        int64 (n,), or (n, k) for tuples of k integers; a list where keys are neither.
    plain
        The same as Python values.
    series
        The series of all of them.
    """

    width: int
    keys: Any
    plain: list[Any]
    series: ManySeries


class Merge:
    """Blocks of the same shards, ready to be read key by key.

    Parameters
    ----------
    sources
        For each rank its blocks, all of equally many shards.
    frames
        The frames of these ranks.
    numbers
        The selected frame numbers.
    """

    def __init__(self, sources: Sequence[Sequence[Block]], frames: Frames, numbers: range) -> None:
        self._numbers = numbers
        self._table = frames.table
        self._names: dict[bytes, int] = {}
        self._shards = 0
        self._rows = frames.rows
        lots: dict[int, dict[Kind, list[_Piece]]] = {}
        for rank, blocks in enumerate(sources):
            for block in blocks:
                self._shards = len(block.bounds) - 1
                piece = _Piece(rank, block, self._keys_of(block))
                lots.setdefault(block.width, {}).setdefault(block.kind, []).append(piece)
        self._decoded = list(self._names)
        self._widths = [
            (width, [_Lot(kind, pieces, frames.rows) for kind, pieces in sorted(kinds.items(), key=_presence_first)])
            for width, kinds in sorted(lots.items())
        ]

    @cached_property
    def _plans(self) -> list[Plan]:
        return [Plan(rows) for rows in self._rows]

    def groups(self) -> Iterator[tuple[Any, Series]]:
        """Give every key with its series, once."""
        for group in self.many():
            yield from zip(group.plain, group.series, strict=True)

    def many(self) -> Iterator[Keyed]:
        """Give every key with its series, once, many at a time."""
        for group in self._groups():
            series = ManySeries(self._table, self._numbers, group.bounds, group.at, group.values)
            plain = self._plain(group)
            yield Keyed(group.width, plain if group.width == ENCODED else group.keys, plain, series)

    def _keys_of(self, block: Block) -> Keys:
        if block.names is None:
            return block.keys
        known = self._names
        places = np.array([known.setdefault(name, len(known)) for name in block.names], dtype=np.int64)
        return places[block.keys]

    def _plain(self, group: _Group) -> list[Any]:
        keys: list[Any] = group.keys.tolist()
        if group.width == ENCODED:
            return [decode(self._decoded[place]) for place in keys]
        return keys if group.width == 0 else [tuple(key) for key in keys]

    def _groups(self) -> Iterator[_Group]:
        for width, lots in self._widths:
            for start, stop in self._spans(lots):
                present = [lot for lot in lots if lot.has(start, stop)]
                if all(lot.presence for lot in present):
                    yield from self._present(width, present, start, stop)
                elif len(present) == 1:
                    yield self._uniform(width, present[0], start, stop)
                else:
                    yield from self._mixed(width, present, start, stop)

    def _spans(self, lots: Sequence[_Lot]) -> Iterator[tuple[int, int]]:
        """Give ranges of shards, each with about `SPAN` pairs or of one shard, that have pairs."""
        ends = np.cumsum(sum(lot.weights for lot in lots)).tolist()
        start, done = 0, 0
        for shard, end in enumerate(ends):
            last = shard + 1 == len(ends)
            if end > done and (last or ends[shard + 1] - done > SPAN):
                yield start, shard + 1
                start, done = shard + 1, end

    def _uniform(self, width: int, lot: _Lot, start: int, stop: int) -> _Group:
        """Merge rows whose values are all of one layout."""
        parts = list(lot.parts(start, stop))
        columns = [part.values for part in parts]
        # Values as small as a row's number travel with their rows, others are fetched by it.
        small = lot.row_bytes == CARRIED
        carried = [raw(column).view(np.uint32) for column in columns] if small else _numbered(parts)
        keys, bounds, at, carried_there = merge_rows(
            [_table(part.keys) for part in parts], [part.at for part in parts], [part.rows for part in parts], carried
        )
        if small:
            values = carried_there.view(columns[0].dtype).reshape(-1, *columns[0].shape[1:])
        else:
            values = gathered(_joined(columns), carried_there)
        return _Group(width, _shaped(keys, width), bounds, at, values)

    def _present(self, width: int, lots: Sequence[_Lot], start: int, stop: int) -> Iterator[_Group]:
        """Merge presence, whether bits, runs or rows of their own."""
        parts = [part for lot in lots for part in lot.parts(start, stop)]
        keys = np.concatenate([part.keys for part in parts])
        ids, groups = group_rows(_table(keys))
        counts = np.concatenate([part.counts() for part in parts])
        totals = np.bincount(ids, weights=counts, minlength=len(groups)).astype(np.int64)
        ends = np.cumsum(totals)
        cut = 0
        while cut < len(groups):
            # Most often all of them.
            done = int(ends[cut - 1]) if cut else 0
            stop_at = max(cut + 1, int(np.searchsorted(ends, done + EXPANDED, side="right")))
            bounds = np.concatenate([[0], ends[cut:stop_at] - done])
            at = self._expanded(parts, ids, cut, stop_at, bounds)
            yield _Group(width, _shaped(groups[cut:stop_at], width), bounds, at, None)
            cut = stop_at

    def _expanded(self, parts: Sequence[_Part], ids: Rows, cut: int, stop: int, bounds: Bounds) -> Rows:
        """Return the frames of the keys from `cut` to `stop`, sorted by key and frame."""
        chosen = []
        some = stop - cut < int(ids.max()) + 1
        row = 0
        for part in parts:
            part_ids = ids[row : row + len(part.at)]
            row += len(part.at)
            if some:
                rows = np.flatnonzero((part_ids >= cut) & (part_ids < stop))
                chosen.append((part.chosen(rows), part_ids[rows] - np.uint32(cut)))
            else:
                chosen.append((part, part_ids))
        frames = len(self._table)
        # Bitmaps take no more memory than twice the frames that they stand for.
        dense = (stop - cut) * frames <= 64 * int(bounds[-1])
        if dense and all(part.form != Form.PAIR for part in parts):
            bitmaps = Bitmaps(stop - cut, frames)
            for part, part_ids in chosen:
                part.place(part_ids, self._plans[part.rank], bitmaps)
            return bitmaps.frames(bounds)
        out = np.empty(int(bounds[-1]), dtype=np.uint32)
        cursor = bounds[:-1].copy()
        for part, part_ids in chosen:
            part.expand(part_ids, cursor, out)
        sort_frames(out, bounds)
        return out

    def _mixed(self, width: int, lots: Sequence[_Lot], start: int, stop: int) -> Iterator[_Group]:
        """Merge rows whose values are of several layouts; a key whose own are not gets a list."""
        taken = [lot.take(start, stop) for lot in lots]
        keys = np.concatenate([part[0] for part in taken])
        at = np.concatenate([part[1] for part in taken])
        order = np.concatenate([lot.order(start, stop) for lot in lots])
        lot_of = np.repeat(np.arange(len(taken)), [len(part[1]) for part in taken])
        row_of = np.concatenate([np.arange(len(part[1])) for part in taken])
        _check_rows(len(at))
        emitted = np.lexsort((order, at))  # stable: presence as bits comes before all else in its frame
        keys, at, lot_of, row_of = keys[emitted], at[emitted], lot_of[emitted], row_of[emitted]
        numbers = np.arange(len(self._table), dtype=np.uint32)
        groups, bounds, at, rows = merge_rows([_table(keys)], [at], [numbers], [np.arange(len(at), dtype=np.uint32)])
        keys = _shaped(groups, width)
        lot_of, row_of = lot_of[rows], row_of[rows]
        columns = [part[2] for part in taken]
        for group in range(len(keys)):
            a, b = int(bounds[group]), int(bounds[group + 1])
            values = _pick(columns, lot_of[a:b], row_of[a:b])
            yield _Group(width, keys[group : group + 1], np.array([0, b - a]), at[a:b], values)


def _presence_first(item: tuple[Kind, Any]) -> tuple[bool, int]:
    """Order kinds so that bits and runs come first: within a frame, they were emitted before all else."""
    form = item[0][1]
    return form == Form.PAIR, int(form)


def _pick(columns: Sequence[Column], lot_of: npt.NDArray[np.int64], row_of: npt.NDArray[np.int64]) -> Column:
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block of one rank, its encoded keys numbered anew."""

    rank: int
    block: Block
    keys: Keys


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of one rank, whose frames `rows` numbers anew."""

    rank: int
    form: Form
    keys: Keys
    at: Rows
    values: Any
    rows: Rows

    def counts(self) -> npt.NDArray[np.uint32]:
        """Return how many frames each row stands for."""
        if self.form == Form.BITS:
            return count_bits(self.values)
        if self.form == Form.INTERVAL:
            counts: npt.NDArray[np.uint32] = self.values
            return counts
        return np.ones(len(self.at), dtype=np.uint32)

    def chosen(self, rows: npt.NDArray[np.int64]) -> _Part:
        """Return some of the rows."""
        values = None if self.values is None else self.values[rows]
        return _Part(self.rank, self.form, self.keys[rows], self.at[rows], values, self.rows)

    def expand(self, ids: Rows, cursor: npt.NDArray[np.int64], out: Rows) -> None:
        """Write the frames of row i where ``cursor[ids[i]]`` stands."""
        if self.form == Form.BITS:
            expand_bits(ids, self.at, self.values, self.rows, cursor, out)
        elif self.form == Form.INTERVAL:
            expand_intervals(ids, self.at, self.values, self.rows, cursor, out)
        else:
            expand_rows(ids, self.at, self.rows, cursor, out)

    def place(self, ids: Rows, plan: Plan, bitmaps: Bitmaps) -> None:
        """Set the frames of row i, bits or a run, in the bitmap of ``ids[i]``."""
        if self.form == Form.BITS:
            bitmaps.place_bits(plan, ids, self.at, self.values)
        else:
            bitmaps.place_intervals(plan, ids, self.at, self.values)


class _Lot:
    """Blocks of one kind, one or more a rank."""

    def __init__(self, kind: Kind, pieces: Sequence[_Piece], rows: Sequence[Rows]) -> None:
        _, self._form, dtype, shape = kind
        self._pieces = pieces
        self._of_rank = rows
        #: Whether values are none but presence.
        self.presence = self._form != Form.PAIR or dtype is None
        bounds = sum(piece.block.bounds for piece in pieces)
        #: int64 (shards,): how many pairs each shard has, about.
        self.weights = np.diff(bounds) * (16 if self._form == Form.BITS else 1)
        #: How many bytes the values of a row have.
        self.row_bytes = 0 if dtype is None or dtype.hasobject else dtype.itemsize * int(np.prod(shape))

    def has(self, start: int, stop: int) -> bool:
        """Tell whether the shards have rows."""
        return bool(self.weights[start:stop].any())

    def take(self, start: int, stop: int) -> tuple[Keys, Rows, Column]:
        """Return the shards' keys, frames and values, each as one column of pairs."""
        if self.presence:
            return self._expanded(start, stop)
        parts = list(self.parts(start, stop))
        at = [renumber(part.at, part.rows) for part in parts]
        return _joined([part.keys for part in parts]), _joined(at), _joined([part.values for part in parts])

    def parts(self, start: int, stop: int) -> Iterator[_Part]:
        """Give the shards' rows, by rank."""
        for piece in self._pieces:
            block = piece.block
            a, b = block.bounds[[start, stop]].tolist()
            values = None if block.values is None else block.values[a:b]
            yield _Part(piece.rank, self._form, piece.keys[a:b], block.at[a:b], values, self._of_rank[piece.rank])

    def order(self, start: int, stop: int) -> npt.NDArray[np.uint32]:
        """Return the order of emission; 0 in chunks that had no other layout, where the rows' order tells."""
        orders = []
        for piece in self._pieces:
            a, b = piece.block.bounds[[start, stop]].tolist()
            column = piece.block.order
            orders.append(np.zeros(b - a, np.uint32) if column is None else column[a:b])
        if self._form != Form.PAIR:
            counts = np.concatenate([part.counts() for part in self.parts(start, stop)])
            return np.zeros(int(counts.sum()), dtype=np.uint32)
        return np.concatenate(orders)

    def _expanded(self, start: int, stop: int) -> tuple[Keys, Rows, Column]:
        """Return presence as pairs, row after row."""
        parts = list(self.parts(start, stop))
        counts = np.concatenate([part.counts() for part in parts])
        out = np.empty(int(counts.sum()), dtype=np.uint32)
        cursor = np.cumsum(counts, dtype=np.int64) - counts
        ids = np.arange(len(counts), dtype=np.uint32)
        row = 0
        for part in parts:
            part.expand(ids[row : row + len(part.at)], cursor, out)
            row += len(part.at)
        return np.repeat(np.concatenate([part.keys for part in parts]), counts, axis=0), out, None


def _table(keys: Keys) -> Keys:
    """Return keys as (n, k)."""
    return np.ascontiguousarray(keys).reshape(len(keys), 1 if keys.ndim == 1 else keys.shape[1])


def _shaped(keys: Keys, width: int) -> Keys:
    """Return keys (n, k) as they are in a block."""
    return keys if width > 0 else keys[:, 0]


def _numbered(parts: Sequence[_Part]) -> list[Rows]:
    """Return the numbers of the parts' rows, over all of them."""
    ends = np.cumsum([len(part.at) for part in parts]).tolist()
    _check_rows(ends[-1])
    return [np.arange(end - len(part.at), end, dtype=np.uint32) for end, part in zip(ends, parts, strict=True)]


def _check_rows(n: int) -> None:
    if n > MOST:
        raise AnalysisError(
            f"one key, or few, have {n} pairs, and at most {MOST} can be put into order at a time; yield them under "
            "more keys, or make fewer of them in combine()"
        )


def _joined(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
