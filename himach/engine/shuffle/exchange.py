"""The exchange: each rank sends every other rank what belongs there, blocks of its shards or tables of frames.

Ranks send to few others at a time, and columns as raw bytes from where they lie to where they stay; small ones travel
together. What describes the columns, and Python values, travel pickled before them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from himach.engine.pairs.block import Array, Block, Columns, Raw, objects, raw
from himach.engine.pairs.values import pack, unpack
from himach.engine.stamps.table import FrameTable
from himach.parallel.communicator import Communicator

#: Bytes of a message, at most.
MESSAGE_BYTES = 1 << 24
#: Columns of fewer bytes are put together for a message.
SMALL_COLUMN_BYTES = 1 << 17
#: Ranks to which a rank sends at a time, and from which it receives.
MAX_PARTNERS = 8
# Columns start at multiples of this, so that their views are aligned.
ALIGNMENT_BYTES = 16
_BYTE = "B"
_TAG = 7010

# What is said of columns beside their names: plain values.
Head = tuple[Any, ...]


def shards_of(rank: int, size: int, shards: int) -> tuple[int, int]:
    """Return the first shard of a rank and the first one that is no longer its own."""
    return -(-rank * shards // size), -(-(rank + 1) * shards // size)


class Exchange:
    """Moves blocks and tables between all ranks, into memory that is used over and over.

    `sent` is how many bytes went to other ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self.sent = 0
        self._comm = comm
        self._arena = np.empty(0, dtype=np.uint8)

    def move(
        self, outgoing: list[list[Block]], tables: Sequence[FrameTable] = ()
    ) -> tuple[list[list[Block]], list[FrameTable]]:
        """Send ``outgoing[r]``, and ``tables[r]`` if there are any, to rank r, for all ranks at once (collective).

        Returns
        -------
        blocks
            For each rank the blocks that it sent here. Their columns hold until the next call.
        tables
            For each rank the table that it sent here; no longer than the blocks.
        """
        rank = self._comm.rank
        if self._comm.size == 1:
            return [outgoing[0]], list(tables)
        mine = outgoing[rank], tables[rank] if tables else None
        streams = [
            _Stream([*([((), tables[other].columns())] if tables else []), *map(_parts, blocks)])
            if other != rank and blocks
            else _Stream([])
            for other, blocks in enumerate(outgoing)
        ]
        outgoing.clear()
        blocks, frames = [], []
        for reader in self._move(streams):
            things = list(reader)
            if tables:
                frames.append(FrameTable.of(things.pop(0)[1]) if things else FrameTable.joined([]))
            blocks.append([_block(*thing) for thing in things])
        blocks[rank] = mine[0]
        if mine[1] is not None:
            frames[rank] = mine[1]
        return blocks, frames

    def _move(self, streams: Sequence[_Stream]) -> list[_Reader]:
        """Send ``streams[r]`` to rank r; return what came, by rank."""
        comm = self._comm
        sizes = np.array([(len(stream.description), stream.size) for stream in streams], dtype=np.int64)
        coming = np.empty_like(sizes)
        comm.Alltoall(sizes, coming)
        self.sent += int(sizes.sum())
        ends = np.cumsum(coming[:, 1])
        arena = self._room(int(ends[-1]))
        readers = [
            _Reader(np.empty(described, np.uint8), arena[end - size : end])
            for end, (described, size) in zip(ends.tolist(), coming.tolist(), strict=True)
        ]
        for start in range(1, comm.size, MAX_PARTNERS):
            steps = range(start, min(start + MAX_PARTNERS, comm.size))
            targets = [streams[(comm.rank + step) % comm.size] for step in steps]
            sources = [readers[(comm.rank - step) % comm.size] for step in steps]
            # What is described first says into which messages the rest is cut.
            self._pass(steps, [[stream.description] for stream in targets], [[some.description] for some in sources])
            self._pass(steps, [stream.messages() for stream in targets], [some.messages() for some in sources])
        return readers

    def _pass(self, steps: range, outgoing: Sequence[Sequence[Raw]], coming: Sequence[Sequence[Raw]]) -> None:
        """Send messages so many ranks on, and receive those from as many ranks back."""
        comm, requests = self._comm, []
        for step, messages in zip(steps, coming, strict=True):
            source = (comm.rank - step) % comm.size
            requests += [comm.Irecv([message, _BYTE], source, _TAG) for message in messages if len(message)]
        for step, messages in zip(steps, outgoing, strict=True):
            target = (comm.rank + step) % comm.size
            requests += [comm.Isend([message, _BYTE], target, _TAG) for message in messages if len(message)]
        for request in requests:
            request.wait()

    def _room(self, nbytes: int) -> Raw:
        """Return memory that is kept, so that its pages need not be made anew each time."""
        if len(self._arena) < nbytes:
            self._arena = np.empty(0, dtype=np.uint8)
            self._arena = np.empty(nbytes, dtype=np.uint8)
        return self._arena[:nbytes]


class _Stream:
    """What goes to one rank: a `description`, which is pickled, and of `size` bytes the columns.

    Parameters
    ----------
    sent
        Things of which each is a head, which is plain, and columns.
    """

    def __init__(self, sent: Sequence[tuple[Head, Columns]]) -> None:
        self._pieces: list[Raw] = []
        heads = [(head, {name: self._add(column) for name, column in columns.items()}) for head, columns in sent]
        self.size = sum(_aligned(len(piece)) for piece in self._pieces)
        self.description: Raw = np.frombuffer(pickle.dumps(heads, protocol=5) if heads else b"", dtype=np.uint8)

    def _add(self, column: Array) -> tuple[np.dtype[Any], tuple[int, ...], list[int]]:
        """Add the bytes of a column; return what a reader needs to know of it."""
        added = (
            [np.frombuffer(buffer, np.uint8) for buffer in pack(column)] if column.dtype.hasobject else [raw(column)]
        )
        self._pieces += added
        return column.dtype, column.shape, [len(piece) for piece in added]

    def messages(self) -> list[Raw]:
        """Return the columns as messages."""
        found, pieces = [], iter(self._pieces)
        for start, stop, count in _cut([len(piece) for piece in self._pieces]):
            some = [next(pieces) for _ in range(count)]
            if count == 1:
                found += [some[0][at : at + MESSAGE_BYTES] for at in range(0, len(some[0]), MESSAGE_BYTES)]
                continue
            together, at = np.zeros(stop - start, dtype=np.uint8), 0
            for piece in some:
                together[at : at + len(piece)] = piece
                at += _aligned(len(piece))
            found.append(together)
        return found


class _Reader:
    """What comes from one rank's `_Stream`, from which its things are taken; columns of numbers are views of it."""

    def __init__(self, description: Raw, arena: Raw) -> None:
        self.description = description
        self._arena = arena
        self._at = 0

    def _heads(self) -> list[tuple[Head, dict[str, Any]]]:
        return pickle.loads(self.description) if len(self.description) else []

    def messages(self) -> list[Raw]:
        """Return the places of the messages that will come."""
        sizes = [size for _, columns in self._heads() for described in columns.values() for size in described[2]]
        found = []
        for start, stop, count in _cut(sizes):
            if count == 1:
                found += [self._arena[at : min(at + MESSAGE_BYTES, stop)] for at in range(start, stop, MESSAGE_BYTES)]
            else:
                found.append(self._arena[start:stop])
        return found

    def __iter__(self) -> Iterator[tuple[Head, dict[str, Array]]]:
        for head, columns in self._heads():
            yield head, {name: self._column(*described) for name, described in columns.items()}

    def _column(self, dtype: np.dtype[Any], shape: tuple[int, ...], sizes: list[int]) -> Array:
        pieces = [self._raw(size) for size in sizes]
        if dtype.hasobject:
            # Out of the arena, which is overwritten next time: arrays among the objects are views of their buffers.
            return objects(unpack(*[piece.copy().data for piece in pieces]))
        return pieces[0].view(dtype).reshape(shape) if sizes[0] else np.empty(shape, dtype=dtype)

    def _raw(self, nbytes: int) -> Raw:
        start = self._at
        self._at += _aligned(nbytes)
        return self._arena[start : start + nbytes]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _cut(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Give where pieces that travel together begin and end, and how many they are; a large one travels alone."""
    start, at, count = 0, 0, 0
    for size in sizes:
        if count and (size >= SMALL_COLUMN_BYTES or at - start >= SMALL_COLUMN_BYTES):
            yield start, at, count
            start, count = at, 0
        at, count = at + _aligned(size), count + 1
        if size >= SMALL_COLUMN_BYTES:
            yield start, start + size, 1
            start, count = at, 0
    if count:
        yield start, at, count


def _parts(block: Block) -> tuple[Head, Columns]:
    return (block.form, block.width), {"bounds": block.bounds, **block.columns()}


def _block(head: Head, columns: dict[str, Array]) -> Block:
    form, width = head
    return Block(form, width, columns.pop("bounds"), **columns)
