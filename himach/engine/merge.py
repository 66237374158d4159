"""The merge: blocks of any ranks become, shard by shard, one `Series` per key.

Rows are grouped by hashing and counting, never by comparing. They are put in frame order first, if blocks overlap in
time at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.columns import Block, Column, FrameTable, Layout, moved
from himach.engine.kernels import count_places, group_rows, join, order_places
from himach.engine.keys import ENCODED, decode
from himach.engine.series import Series

__all__ = ["Merge"]


class Merge:
    """Blocks of the same shards, ready to be read key by key.

    Parameters
    ----------
    blocks
        Blocks of equally many shards; the list is taken over.
    numbers
        The selected frame numbers.
    """

    def __init__(self, blocks: list[Block], numbers: range) -> None:
        self._numbers = numbers
        self._table, rows, self._overlap = _join_tables(blocks, forward=numbers.step > 0)
        self._shards = len(blocks[0].bounds) - 1 if blocks else 0
        self._names: dict[bytes, int] = {}
        lots: dict[int, dict[Layout, list[_Slices]]] = {}
        # Blocks in order of time, so that rows are in order already where blocks do not overlap.
        for block in sorted(blocks, key=lambda block: int(rows[id(block.frames)][0])):
            lots.setdefault(block.width, {}).setdefault(block.layout, []).append(
                _Slices(block, rows[id(block.frames)], self._keys_of(block))
            )
        blocks.clear()
        self._lots = [(width, [_Lot(slices) for slices in layouts.values()]) for width, layouts in sorted(lots.items())]
        self._decoded = list(self._names)

    def groups(self) -> Iterator[tuple[Any, Series]]:
        """Give every key with its series, once; shard by shard, each shard freed when the next is asked for."""
        for shard in range(self._shards):
            for width, lots in self._lots:
                present = [lot for lot in lots if lot.rows(shard)]
                if len(present) == 1:
                    yield from self._uniform(width, present[0], shard)
                elif present:
                    yield from self._mixed(width, present, shard)

    def _keys_of(self, block: Block) -> npt.NDArray[np.int64]:
        if block.names is None:
            return block.keys
        known = self._names
        places = np.array([known.setdefault(name, len(known)) for name in block.names], dtype=np.int64)
        return places[block.keys]

    def _uniform(self, width: int, lot: _Lot, shard: int) -> Iterator[tuple[Any, Series]]:
        """Give the groups of a shard whose values are all of one layout."""
        keys, at, values = lot.take(shard)
        if self._overlap:
            keys, at, values = _in_order(order_places(at, len(self._table)), keys, at, values)
        ids, first = group_rows(keys.reshape(len(keys), -1))
        places, bounds = count_places(ids, len(first))
        at = moved(at, places)
        values = None if values is None else moved(values, places)
        table, numbers = self._table, self._numbers
        edges = bounds.tolist()
        start = 0
        for key, stop in zip(self._plain(width, keys[first]), edges[1:], strict=True):
            yield key, Series(table, numbers, at[start:stop], None if values is None else values[start:stop])
            start = stop

    def _mixed(self, width: int, lots: Sequence[_Lot], shard: int) -> Iterator[tuple[Any, Series]]:
        """Give the groups of a shard whose values are of several layouts; a key whose own are not gets a list."""
        taken = [lot.take(shard) for lot in lots]
        keys = np.concatenate([part[0] for part in taken])
        at = np.concatenate([part[1] for part in taken])
        order = np.concatenate([lot.order(shard) for lot in lots])
        lot_of = np.repeat(np.arange(len(taken)), [len(part[1]) for part in taken])
        row_of = np.concatenate([np.arange(len(part[1])) for part in taken])
        emitted = np.lexsort((order, at))  # stable
        keys, at, lot_of, row_of = keys[emitted], at[emitted], lot_of[emitted], row_of[emitted]
        ids, first = group_rows(keys.reshape(len(keys), -1))
        places, bounds = count_places(ids, len(first))
        at, lot_of, row_of = moved(at, places), moved(lot_of, places), moved(row_of, places)
        for group, key in enumerate(self._plain(width, keys[first])):
            rows = slice(int(bounds[group]), int(bounds[group + 1]))
            values = _pick([part[2] for part in taken], lot_of[rows], row_of[rows])
            yield key, Series(self._table, self._numbers, at[rows], values)

    def _plain(self, width: int, keys: npt.NDArray[np.int64]) -> list[Any]:
        if width == ENCODED:
            return [decode(self._decoded[place]) for place in keys.tolist()]
        return keys.tolist() if width == 0 else [tuple(key) for key in keys.tolist()]


def _in_order(
    places: npt.NDArray[np.uint32], keys: npt.NDArray[np.int64], at: npt.NDArray[np.uint32], values: Column
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], Column]:
    return moved(keys, places), moved(at, places), None if values is None else moved(values, places)


def _pick(columns: Sequence[Column], lot_of: npt.NDArray[np.int64], row_of: npt.NDArray[np.int64]) -> Column:
    """Return one key's values; an object array where they are of several layouts."""
    if (lot_of == lot_of[0]).all():
        column = columns[lot_of[0]]
        return None if column is None else column[row_of]
    picked = np.empty(len(lot_of), dtype=object)
    for place, (lot, row) in enumerate(zip(lot_of.tolist(), row_of.tolist(), strict=True)):
        column = columns[lot]
        value = None if column is None else column[row]
        picked[place] = value.copy() if isinstance(value, np.ndarray | np.void) else value
    return picked


def _join_tables(blocks: Sequence[Block], forward: bool) -> tuple[FrameTable, dict[int, npt.NDArray[np.uint32]], bool]:
    """Join the blocks' frame tables in the order of frames.

    Returns
    -------
    table
        All frames, in order of frame number and then of source.
    rows
        For each table, by identity, where its rows are now.
    overlap
        Whether any two tables overlap in time.
    """
    tables = list({id(block.frames): block.frames for block in blocks}.values())
    joined = FrameTable.joined(tables)
    time = joined.steps if forward else -joined.steps
    if joined.sources is None:
        order = np.argsort(time, kind="stable")
    else:
        steps, sources = time.tolist(), joined.sources
        order = np.array(sorted(range(len(joined)), key=lambda row: (steps[row], sources[row])), dtype=np.int64)
    place = np.empty(len(order), dtype=np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    rows = {}
    start = 0
    for table in tables:
        rows[id(table)] = place[start : start + len(table)]
        start += len(table)
    # Without overlap each table's rows follow one another.
    overlap = any(len(part) and (np.diff(part.astype(np.int64)) != 1).any() for part in rows.values())
    ordered = FrameTable(
        joined.steps[order], joined.times[order], None if joined.boxes is None else joined.boxes[order]
    )
    return ordered, rows, overlap


class _Slices:
    """A block with its keys and frames renumbered for this rank."""

    def __init__(self, block: Block, rows: npt.NDArray[np.uint32], keys: npt.NDArray[np.int64]) -> None:
        self.bounds = block.bounds
        self.keys = keys
        self.at = rows[block.at]
        self.order = block.order
        self.values = block.values


class _Lot:
    """Blocks of one width and one layout."""

    def __init__(self, slices: Sequence[_Slices]) -> None:
        # By shard, so that one shard's bounds in all blocks lie side by side.
        self._bounds = np.ascontiguousarray(np.stack([part.bounds for part in slices], axis=1))
        self._rows = np.diff(self._bounds.sum(axis=1)).tolist()
        self._keys = _Joint([part.keys for part in slices])
        self._at = _Joint([part.at for part in slices])
        self._order = [part.order for part in slices]
        values = [part.values for part in slices if part.values is not None]
        self._values = _Joint(values) if values else None

    def rows(self, shard: int) -> int:
        """Return how many rows the shard has."""
        count: int = self._rows[shard]
        return count

    def take(self, shard: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], Column]:
        """Return the shard's keys, frames and values, each as one column."""
        starts, stops = self._bounds[shard], self._bounds[shard + 1]
        values = None if self._values is None else self._values.take(starts, stops)
        return self._keys.take(starts, stops), self._at.take(starts, stops), values

    def order(self, shard: int) -> npt.NDArray[np.uint32]:
        """Return the shard's order of emission; 0 in chunks that had no other layout, where the rows' order tells."""
        rows = zip(self._order, self._bounds[shard].tolist(), self._bounds[shard + 1].tolist(), strict=True)
        return np.concatenate(
            [np.zeros(stop - start, np.uint32) if order is None else order[start:stop] for order, start, stop in rows]
        )


class _Joint:
    """One column in many blocks."""

    def __init__(self, columns: Sequence[npt.NDArray[Any]]) -> None:
        self._columns = [np.ascontiguousarray(column) for column in columns]
        self._addresses = np.array([column.ctypes.data for column in self._columns], dtype=np.uint64)

    def take(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the rows ``starts[i]:stops[i]`` of every block i as one column."""
        first = self._columns[0]
        if first.dtype.hasobject:
            rows = zip(self._columns, starts.tolist(), stops.tolist(), strict=True)
            return np.concatenate([column[start:stop] for column, start, stop in rows])
        out = np.empty((int((stops - starts).sum()), *first.shape[1:]), dtype=first.dtype)
        if out.nbytes:
            row = out.nbytes // len(out)
            join(self._addresses, starts * row, stops * row, out.reshape(-1).view(np.uint8))
        return out
