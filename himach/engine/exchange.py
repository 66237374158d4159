"""The exchange: each rank sends every other rank the blocks of its shards.

Columns travel as raw bytes, in rounds of bounded size, so that the memory of a round and MPI's counts stay small
however much there is. What describes the columns, and Python values, travel pickled among them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.comm import Communicator
from himach.engine.columns import Block, FrameTable
from himach.engine.values import pack, unpack

__all__ = ["ROUND", "exchange", "shards_of"]

#: Bytes that a rank sends in one round, at most.
ROUND = 1 << 26
# Columns start at multiples of this, so that their views are aligned.
ALIGN = 16

Bytes = npt.NDArray[np.uint8]


def shards_of(rank: int, size: int, shards: int) -> tuple[int, int]:
    """Return the first shard of a rank and the first one that is no longer its own."""
    return -(-rank * shards // size), -(-(rank + 1) * shards // size)


def exchange(comm: Communicator, outgoing: list[list[Block]], limit: int = ROUND) -> tuple[list[Block], int]:
    """Send ``outgoing[r]`` to rank r, for all ranks at once (collective).

    Parameters
    ----------
    comm
        All ranks.
    outgoing
        For each rank its blocks; the lists are emptied, so that memory is freed as the blocks leave.
    limit
        Bytes that a rank sends in one round, at most.

    Returns
    -------
    blocks
        What this rank got, by source rank, the order of each source's blocks kept.
    sent
        Bytes that went to other ranks.
    """
    if comm.size == 1:
        mine, outgoing[0] = outgoing[0], []
        return mine, 0
    senders = []
    for rank, blocks in enumerate(outgoing):
        senders.append(_Sender([] if rank == comm.rank else blocks))
    mine = [block.copy() for block in outgoing[comm.rank]]
    outgoing.clear()
    sizes = np.array([(sender.described, sender.size) for sender in senders], dtype=np.int64)
    coming = np.empty_like(sizes)
    comm.Alltoall(sizes, coming)
    arenas = [np.empty(int(size), dtype=np.uint8) for size in coming[:, 1]]
    _rounds(comm, senders, arenas, max(1, limit // comm.size))
    received = []
    for rank, arena in enumerate(arenas):
        received += mine if rank == comm.rank else _unpacked(arena, int(coming[rank, 0]))
    return received, int(sizes[:, 1].sum())


def _rounds(comm: Communicator, senders: Sequence[_Sender], arenas: Sequence[Bytes], share: int) -> None:
    """Move the senders' bytes into the arenas, at most `share` bytes from rank to rank in a round."""
    left = np.array([sender.size for sender in senders], dtype=np.int64)
    due = np.array([len(arena) for arena in arenas], dtype=np.int64)
    done = np.zeros_like(due)
    rounds = max(comm.allgather(-(-int(left.max()) // share)))
    sendbuf = np.empty(int(np.minimum(left, share).sum()), dtype=np.uint8)
    recvbuf = np.empty(int(np.minimum(due, share).sum()), dtype=np.uint8)
    for _ in range(rounds):
        counts, wanted = np.minimum(left, share), np.minimum(due - done, share)
        places, origins = np.cumsum(counts) - counts, np.cumsum(wanted) - wanted
        for sender, place, count in zip(senders, places.tolist(), counts.tolist(), strict=True):
            sender.fill(sendbuf[place : place + count])
        comm.Alltoallv([sendbuf, counts, places, _BYTE], [recvbuf, wanted, origins, _BYTE])
        for arena, at, origin, count in zip(arenas, done.tolist(), origins.tolist(), wanted.tolist(), strict=True):
            arena[at : at + count] = recvbuf[origin : origin + count]
        left -= counts
        done += wanted


_BYTE = "B"


class _Sender:
    """The blocks for one rank as a stream of bytes: the description, then the columns."""

    def __init__(self, blocks: list[Block]) -> None:
        columns: list[Bytes] = []
        tables: dict[int, int] = {}
        kept: list[FrameTable] = []
        described = []
        for block in blocks:
            table = tables.setdefault(id(block.frames), len(tables))
            if table == len(kept):
                kept.append(block.frames)
            described.append((table, *_describe_block(block, columns)))
        frames = [_describe_table(table, columns) for table in kept]
        description = pickle.dumps((frames, described), protocol=5) if blocks else b""
        self.described = len(description)
        self._pieces: list[Bytes] = [*_padded(np.frombuffer(description, dtype=np.uint8))]
        for column in columns:
            self._pieces += _padded(column)
        self.size = sum(map(len, self._pieces))
        self._pieces.reverse()

    def fill(self, target: Bytes) -> None:
        """Fill `target` with the next bytes of the stream."""
        at = 0
        while at < len(target):
            piece = self._pieces.pop()
            count = min(len(piece), len(target) - at)
            target[at : at + count] = piece[:count]
            if count < len(piece):
                self._pieces.append(piece[count:])
            at += count


def _padded(column: Bytes) -> Iterator[Bytes]:
    if len(column):
        yield column
        if len(column) % ALIGN:
            yield np.zeros(ALIGN - len(column) % ALIGN, dtype=np.uint8)


def _raw(array: npt.NDArray[Any]) -> Bytes:
    if array.nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _describe_table(table: FrameTable, columns: list[Bytes]) -> tuple[Any, ...]:
    columns += [_raw(table.steps), _raw(table.times)]
    if table.boxes is not None:
        columns.append(_raw(table.boxes))
    return len(table), table.boxes is not None, table.sources


def _describe_block(block: Block, columns: list[Bytes]) -> tuple[Any, ...]:
    columns += [_raw(block.bounds), _raw(block.keys), _raw(block.at)]
    if block.order is not None:
        columns.append(_raw(block.order))
    values: tuple[Any, ...] | None = None
    if block.values is not None and block.values.dtype.hasobject:
        data, buffers = pack(block.values)
        pieces = [np.frombuffer(buffer, dtype=np.uint8) for buffer in (memoryview(data), *buffers)]
        columns += pieces
        values = ("objects", [len(piece) for piece in pieces])
    elif block.values is not None:
        columns.append(_raw(block.values))
        values = ("rows", block.values.dtype, block.values.shape[1:])
    bounds = None if block.name_bounds is None else block.name_bounds
    return len(block), len(block.bounds), block.width, block.order is not None, values, block.names, bounds


def _unpacked(arena: Bytes, described: int) -> list[Block]:
    """Return the blocks of one source; their columns are views of `arena`."""
    if described == 0:
        return []
    frames, blocks = pickle.loads(arena[:described])
    reader = _Reader(arena, described)
    columns = [_read_columns(reader, *description[1:]) for description in blocks]
    tables = [_read_table(reader, *description) for description in frames]
    return [Block(tables[description[0]], *fields) for description, fields in zip(blocks, columns, strict=True)]


class _Reader:
    """Takes one column after the other from the bytes of a source."""

    def __init__(self, arena: Bytes, at: int) -> None:
        self._arena = arena
        self._at = -(-at // ALIGN) * ALIGN

    def raw(self, nbytes: int) -> Bytes:
        start = self._at
        self._at = -(-(start + nbytes) // ALIGN) * ALIGN
        return self._arena[start : start + nbytes]

    def column(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * int(np.prod(shape))
        if nbytes == 0:
            return np.empty(shape, dtype=kind)
        return self.raw(nbytes).view(kind).reshape(shape)


def _read_table(reader: _Reader, n: int, boxed: bool, sources: list[bytes] | None) -> FrameTable:
    steps, times = reader.column(np.int64, (n,)), reader.column(np.float64, (n,))
    return FrameTable(steps, times, reader.column(np.float32, (n, 6)) if boxed else None, sources)


def _read_columns(
    reader: _Reader,
    n: int,
    shards: int,
    width: int,
    ordered: bool,
    values: tuple[Any, ...] | None,
    names: list[bytes] | None,
    name_bounds: npt.NDArray[np.int64] | None,
) -> tuple[Any, ...]:
    bounds = reader.column(np.int64, (shards,))
    keys = reader.column(np.int64, (n, width) if width > 0 else (n,))
    at = reader.column(np.uint32, (n,))
    order = reader.column(np.uint32, (n,)) if ordered else None
    column: Any = None
    if values is not None and values[0] == "objects":
        pieces = [reader.raw(size) for size in values[1]]
        column = np.fromiter(unpack(pieces[0].data, [piece.data for piece in pieces[1:]]), dtype=object, count=n)
    elif values is not None:
        column = reader.column(values[1], (n, *values[2]))
    return width, keys, at, order, column, bounds, names, name_bounds
