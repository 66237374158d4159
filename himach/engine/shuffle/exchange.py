"""The exchange: each rank sends every other rank what belongs there, blocks of its shards or a table of frames.

Columns travel as raw bytes, in rounds of bounded size, so that the memory of a round stays small and MPI's
counts too, however much there is. What describes the columns, and Python values, travel pickled among them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.comm import Communicator
from himach.engine.pairs.block import Block, Form, Raw, raw
from himach.engine.pairs.stamps import FrameTable
from himach.engine.pairs.values import pack, unpack

__all__ = ["ROUND", "Exchange", "shards_of"]

#: Bytes that a rank sends in one round, at most.
ROUND = 1 << 24
# Columns start at multiples of this, so that their views are aligned.
ALIGN = 16
_BYTE = "B"


def shards_of(rank: int, size: int, shards: int) -> tuple[int, int]:
    """Return the first shard of a rank and the first one that is no longer its own."""
    return -(-rank * shards // size), -(-(rank + 1) * shards // size)


class Exchange:
    """Moves blocks and tables between all ranks, in memory that is used over and over.

    Parameters
    ----------
    comm
        All ranks.
    limit
        Bytes that a rank sends in one round, at most.

    Attributes
    ----------
    sent
        Bytes that went to other ranks.
    """

    def __init__(self, comm: Communicator, limit: int) -> None:
        self.sent = 0
        self._comm = comm
        self._share = max(1, limit // comm.size)
        self._buffers = [np.empty(0, dtype=np.uint8) for _ in range(3)]

    def blocks(self, outgoing: list[list[Block]]) -> list[list[Block]]:
        """Send ``outgoing[r]`` to rank r, for all ranks at once (collective).

        Returns
        -------
        list
            For each rank the blocks that it sent here. Their columns hold until the next call.
        """
        comm = self._comm
        mine = outgoing[comm.rank]
        if comm.size == 1:
            return [mine]
        messages = [_Message() if rank == comm.rank else _pack_blocks(part) for rank, part in enumerate(outgoing)]
        outgoing.clear()
        received = self._move(messages)
        return [mine if rank == comm.rank else _unpack_blocks(reader) for rank, reader in enumerate(received)]

    def tables(self, table: FrameTable) -> list[FrameTable]:
        """Return the tables of all ranks (collective)."""
        comm = self._comm
        if comm.size == 1:
            return [table]
        messages = [_Message() if rank == comm.rank else _pack_table(table) for rank in range(comm.size)]
        received = self._move(messages)
        return [table if rank == comm.rank else _unpack_table(reader) for rank, reader in enumerate(received)]

    def _move(self, messages: Sequence[_Message]) -> list[_Reader]:
        """Send ``messages[r]`` to rank r; return what came, by rank."""
        senders = [_Sender(message) for message in messages]
        sizes = np.array([(sender.described, sender.size) for sender in senders], dtype=np.int64)
        coming = np.empty_like(sizes)
        self._comm.Alltoall(sizes, coming)
        self.sent += int(sizes[:, 1].sum())
        ends = np.cumsum(coming[:, 1])
        arena = self._buffer(0, int(ends[-1]))
        arenas = [arena[end - size : end] for end, size in zip(ends.tolist(), coming[:, 1].tolist(), strict=True)]
        self._rounds(senders, arenas)
        return [_Reader(part, described) for part, described in zip(arenas, coming[:, 0].tolist(), strict=True)]

    def _rounds(self, senders: Sequence[_Sender], arenas: Sequence[Raw]) -> None:
        """Move the senders' bytes into the arenas, some bytes from rank to rank in each round."""
        comm, share = self._comm, self._share
        left = np.array([sender.size for sender in senders], dtype=np.int64)
        due = np.array([len(arena) for arena in arenas], dtype=np.int64)
        done = np.zeros_like(due)
        rounds = max(comm.allgather(-(-int(left.max()) // share)))
        sendbuf = self._buffer(1, int(np.minimum(left, share).sum()))
        recvbuf = self._buffer(2, int(np.minimum(due, share).sum()))
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

    def _buffer(self, which: int, nbytes: int) -> Raw:
        """Return a buffer that is kept, so that its pages need not be made anew each time."""
        if len(self._buffers[which]) < nbytes:
            self._buffers[which] = np.empty(0, dtype=np.uint8)
            self._buffers[which] = np.empty(nbytes, dtype=np.uint8)
        return self._buffers[which][:nbytes]


@dataclass
class _Message:
    """A description, which is pickled, and columns."""

    description: Any = None
    columns: list[Raw] = field(default_factory=list)


class _Sender:
    """A message as a stream of bytes: the description, then the columns."""

    def __init__(self, message: _Message) -> None:
        description = b"" if message.description is None else pickle.dumps(message.description, protocol=5)
        self.described = len(description)
        self._pieces: list[Raw] = [*_padded(np.frombuffer(description, dtype=np.uint8))]
        for column in message.columns:
            self._pieces += _padded(column)
        self.size = sum(map(len, self._pieces))
        self._pieces.reverse()

    def fill(self, target: Raw) -> None:
        """Fill `target` with the next bytes of the stream."""
        at = 0
        while at < len(target):
            piece = self._pieces.pop()
            count = min(len(piece), len(target) - at)
            target[at : at + count] = piece[:count]
            if count < len(piece):
                self._pieces.append(piece[count:])
            at += count


def _padded(column: Raw) -> Iterator[Raw]:
    if len(column):
        yield column
        if len(column) % ALIGN:
            yield np.zeros(ALIGN - len(column) % ALIGN, dtype=np.uint8)


class _Reader:
    """Takes the description, then one column after the other, from the bytes of a message."""

    def __init__(self, arena: Raw, described: int) -> None:
        self.description = pickle.loads(arena[:described]) if described else None
        self._arena = arena
        self._at = -(-described // ALIGN) * ALIGN

    def raw(self, nbytes: int) -> Raw:
        start = self._at
        self._at = -(-(start + nbytes) // ALIGN) * ALIGN
        return self._arena[start : start + nbytes]

    def column(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * int(np.prod(shape))
        if nbytes == 0:
            return np.empty(shape, dtype=kind)
        return self.raw(nbytes).view(kind).reshape(shape)


def _pack_table(table: FrameTable) -> _Message:
    columns = [raw(table.steps), raw(table.times)]
    if table.boxes is not None:
        columns.append(raw(table.boxes))
    return _Message((len(table), table.boxes is not None, table.sources), columns)


def _unpack_table(reader: _Reader) -> FrameTable:
    assert reader.description is not None  # tables always have one
    n, boxed, sources = reader.description
    steps, times = reader.column(np.int64, (n,)).copy(), reader.column(np.float64, (n,)).copy()
    return FrameTable(steps, times, reader.column(np.float32, (n, 6)).copy() if boxed else None, sources)


def _pack_blocks(blocks: Sequence[Block]) -> _Message:
    message = _Message()
    if blocks:
        message.description = [_describe(block, message.columns) for block in blocks]
    return message


def _unpack_blocks(reader: _Reader) -> list[Block]:
    return [_read(reader, *description) for description in reader.description or ()]


def _describe(block: Block, columns: list[Raw]) -> tuple[Any, ...]:
    """Add the columns of a block; return what `_read` needs to know of it."""
    columns += [raw(block.bounds), raw(block.keys), raw(block.at)]
    if block.order is not None:
        columns.append(raw(block.order))
    values: tuple[Any, ...] | None = None
    if block.values is not None and block.values.dtype.hasobject:
        data, buffers = pack(block.values)
        pieces = [np.frombuffer(buffer, dtype=np.uint8) for buffer in (memoryview(data), *buffers)]
        columns += pieces
        values = ("objects", [len(piece) for piece in pieces])
    elif block.values is not None:
        columns.append(raw(block.values))
        values = ("rows", block.values.dtype, block.values.shape[1:])
    return int(block.form), len(block), len(block.bounds), block.width, block.order is not None, values, block.names


def _read(
    reader: _Reader,
    form: int,
    n: int,
    edges: int,
    width: int,
    ordered: bool,
    values: tuple[Any, ...] | None,
    names: list[bytes] | None,
) -> Block:
    """Return a block whose columns are views of the reader's bytes."""
    bounds = reader.column(np.int64, (edges,))
    keys = reader.column(np.int64, (n, width) if width > 0 else (n,))
    at = reader.column(np.uint32, (n,))
    order = reader.column(np.uint32, (n,)) if ordered else None
    column: Any = None
    if values is not None and values[0] == "objects":
        # Out of the arena, which the next message overwrites: arrays among the objects are views of their buffers.
        pieces = [reader.raw(size).copy() for size in values[1]]
        column = np.fromiter(unpack(pieces[0].data, [piece.data for piece in pieces[1:]]), dtype=object, count=n)
    elif values is not None:
        column = reader.column(values[1], (n, *values[2]))
    return Block(Form(form), width, keys, at, order, column, bounds, names)
