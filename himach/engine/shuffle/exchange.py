"""The exchange: each rank sends every other rank what belongs there, blocks of its shards or a table of frames.

Columns travel as raw bytes, in rounds of bounded size, so that the memory of a round stays small and MPI's
counts too, however much there is. What describes the columns, and Python values, travel pickled among them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from himach.engine.pairs.block import Array, Block, Columns, Raw, objects, raw
from himach.engine.pairs.stamps import FrameTable
from himach.engine.pairs.values import pack, unpack
from himach.parallel.communicator import Communicator

__all__ = ["ROUND", "Exchange", "shards_of"]

#: Bytes that a rank sends in one round, at most.
ROUND = 1 << 24
# Columns start at multiples of this, so that their views are aligned.
ALIGN = 16
_BYTE = "B"

# What is said of columns beside their names: plain values.
Head = tuple[Any, ...]


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
        mine = outgoing[self._comm.rank]
        if self._comm.size == 1:
            return [mine]
        senders = [
            _Sender([_parts(block) for block in blocks] if rank != self._comm.rank else [])
            for rank, blocks in enumerate(outgoing)
        ]
        outgoing.clear()
        received = [[_block(*sent) for sent in reader] for reader in self._move(senders)]
        received[self._comm.rank] = mine
        return received

    def tables(self, table: FrameTable) -> list[FrameTable]:
        """Return the tables of all ranks (collective)."""
        comm = self._comm
        if comm.size == 1:
            return [table]
        senders = [_Sender([] if rank == comm.rank else [((), table.columns())]) for rank in range(comm.size)]
        received = [[columns for _, columns in reader] for reader in self._move(senders)]
        received[comm.rank] = [table.columns()]
        return [FrameTable(**{name: column.copy() for name, column in columns.items()}) for (columns,) in received]

    def _move(self, senders: Sequence[_Sender]) -> list[_Reader]:
        """Send what ``senders[r]`` has to rank r; return what came, by rank."""
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


class _Sender:
    """What goes to one rank as a stream of bytes: a description, which is pickled, then the columns.

    Parameters
    ----------
    sent
        Things of which each is a head, which is plain, and columns.
    """

    def __init__(self, sent: Sequence[tuple[Head, Columns]]) -> None:
        pieces: list[Raw] = []
        heads = [(head, {name: _add(column, pieces) for name, column in columns.items()}) for head, columns in sent]
        description = pickle.dumps(heads, protocol=5) if heads else b""
        self.described = len(description)
        self._pieces = [part for piece in (np.frombuffer(description, np.uint8), *pieces) for part in _padded(piece)]
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
    """The bytes of a `_Sender`, from which its things are taken; their columns of numbers are views of the bytes."""

    def __init__(self, arena: Raw, described: int) -> None:
        self._arena = arena
        self._described = described
        self._at = -(-described // ALIGN) * ALIGN

    def __iter__(self) -> Iterator[tuple[Head, dict[str, Array]]]:
        heads = pickle.loads(self._arena[: self._described]) if self._described else []
        for head, columns in heads:
            yield head, {name: self._column(*described) for name, described in columns.items()}

    def _column(self, dtype: np.dtype[Any], shape: tuple[int, ...], sizes: list[int]) -> Array:
        pieces = [self._raw(size) for size in sizes]
        if dtype.hasobject:
            # Out of the arena, which is overwritten next time: arrays among the objects are views of their buffers.
            return objects(unpack(*[piece.copy().data for piece in pieces]))
        return pieces[0].view(dtype).reshape(shape) if sizes[0] else np.empty(shape, dtype=dtype)

    def _raw(self, nbytes: int) -> Raw:
        start = self._at
        self._at = -(-(start + nbytes) // ALIGN) * ALIGN
        return self._arena[start : start + nbytes]


def _add(column: Array, pieces: list[Raw]) -> tuple[np.dtype[Any], tuple[int, ...], list[int]]:
    """Add the bytes of a column to `pieces`; return what a reader needs to know of it."""
    if column.dtype.hasobject:
        added = [np.frombuffer(buffer, dtype=np.uint8) for buffer in pack(column)]
    else:
        added = [raw(column)]
    pieces += added
    return column.dtype, column.shape, [len(piece) for piece in added]


def _parts(block: Block) -> tuple[Head, Columns]:
    return (block.form, block.width), {"bounds": block.bounds, **block.columns()}


def _block(head: Head, columns: dict[str, Array]) -> Block:
    form, width = head
    return Block(form, width, columns.pop("bounds"), **columns)
