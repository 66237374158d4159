"""The exchange: each rank sends every rank the blocks of its shards, or tables of frames.

Ranks of a node write their data to the node's shared memory, grouped by target node. Each group is one message to
another node; data for the own node need none. So the number of messages is that of pairs of nodes, however many ranks
there are, and a single node needs none.

A message to a node (bounds in `Layout.regions`) has the bytes of each stream (int64), for each sending rank those to
each receiving rank, followed by these streams. A stream (`_Stream`) has the columns that one rank sends to another, as
raw bytes, after a pickle of their description.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Array, Block, Columns, Raw, objects, raw
from himach.engine.pairs.values import dumps
from himach.engine.stamps import FrameTable
from himach.errors import HimachError
from himach.ranks.communicator import Words, World

#: Most nodes from which a rank receives at a time.
MAX_PARTNERS = 8
#: Factor by which a node's memory exceeds the need, so that the next wave can reuse it.
GROWTH = 1.25
# Alignment of columns, so that their views are aligned.
ALIGNMENT_BYTES = 16
_TAG = 7010

# Description of columns besides their names: plain values.
Head = tuple[Any, ...]
Sizes = npt.NDArray[np.int64]


def shard_range(rank: int, size: int, shards: int) -> tuple[int, int]:
    """Return the range of a rank's shards: the first one, and the end."""
    return -(-rank * shards // size), -(-(rank + 1) * shards // size)


def node_steps(rank: int, ranks: int, nodes: int) -> range:
    """Return the offsets of the nodes to which a rank sends, by its number `rank` among the `ranks` of its node.

    It receives from the nodes at the negative offsets. A node's ranks divide the other nodes in turns.
    """
    return range(rank or ranks, nodes, ranks)


def count_messages(nodes: int, ranks: int) -> int:
    """Return the most messages that a rank sends at once if its node has `ranks` ranks."""
    return -(-(nodes - 1) // ranks)


class Exchange:
    """Moves blocks and tables between all ranks through the nodes' shared memory, which is reused."""

    def __init__(self, world: World) -> None:
        self.sent = 0
        self.world = world
        self._leaving = _WaveWindow(world.share_words)
        self._arriving = _WaveWindow(world.share_words)
        self._seats = [rank for ranks in world.node_ranks for rank in ranks]
        self._sizes = world.share_words(world.node.size * len(self._seats)).view(np.int64).reshape(world.node.size, -1)
        self._firsts = [0, *accumulate(map(len, world.node_ranks))]

    def move(
        self, outgoing: list[list[Block]], tables: Sequence[FrameTable] = ()
    ) -> tuple[list[list[Block]], list[FrameTable]]:
        """Send ``outgoing[r]``, and ``tables[r]`` if there are any, to rank r, for all ranks at once (collective).

        Return, per rank, the blocks and the table that it sent to this one, valid until the next call. A rank that is
        out of memory raises HimachError, and the others wait for it.
        """
        try:
            return self._exchange(outgoing, tables)
        except MemoryError as error:
            raise HimachError(
                f"rank {self.world.comm.rank} on node {self.world.name} had no memory left for the pairs that ranks "
                f"exchange ({error}); use fewer ranks on a node, or nodes with more memory"
            ) from error

    def _exchange(
        self, outgoing: list[list[Block]], tables: Sequence[FrameTable]
    ) -> tuple[list[list[Block]], list[FrameTable]]:
        rank = self.world.comm.rank
        own = outgoing[rank], tables[rank] if tables else None
        streams = [
            _Stream([*([((), tables[other].columns())] if tables else []), *map(_parts, blocks)])
            if other != rank and blocks
            else _Stream([])
            for other, blocks in enumerate(outgoing)
        ]
        outgoing.clear()
        blocks: list[list[Block]] = [[] for _ in streams]
        frames = [FrameTable.joined([])] * len(streams) if tables else []
        for other, received in self._move(streams):
            pieces = _unpacked(received)
            if tables:
                frames[other] = FrameTable.from_columns(next(pieces)[1])
            blocks[other] = [_block(*piece) for piece in pieces]
        blocks[rank] = own[0]
        if own[1] is not None:
            frames[rank] = own[1]
        return blocks, frames

    def _move(self, streams: "list[_Stream]") -> Iterator[tuple[int, Raw]]:
        """Send ``streams[r]`` to rank r; yield received streams with their sending ranks."""
        world, own_node = self.world, self.world.node_index
        sizes = self._sizes
        sizes[world.node.rank] = [streams[rank].size for rank in self._seats]
        self.sent += int(sizes[world.node.rank].sum())
        world.node.barrier()  # all ranks have read the previous data, which can be overwritten
        layout = WaveLayout(sizes, self._firsts)
        leaving = self._leaving.room(layout.regions[-1])
        layout.write(world.node.rank, leaving.view(np.uint8), [streams[rank] for rank in self._seats])
        streams.clear()
        world.node.barrier()
        own = leaving[layout.regions[own_node] // 8 : layout.regions[own_node + 1] // 8]
        for node, region in enumerate(self._pass(leaving, layout.regions)):
            yield from self._read(node, own if node == own_node else region)

    def _pass(self, leaving: "Words", regions: Sequence[int]) -> "list[Words]":
        """Send each other node its region; return the regions from other nodes, by node."""
        world, own_node = self.world, self.world.node_index
        nodes = len(world.nodes)
        if nodes == 1:
            return [leaving[:0]]
        comm, node_ranks = world.comm, world.node_ranks
        steps = node_steps(world.node.rank, world.node.size, nodes)
        sent = []
        for step in steps:
            node = (own_node + step) % nodes
            target = node_ranks[node][step % len(node_ranks[node])]
            sent.append(comm.Isend(leaving[regions[node] // 8 : regions[node + 1] // 8], target, _TAG))
        sources = {}
        for step in steps:
            node = (own_node - step) % nodes
            sources[node] = node_ranks[node][step % len(node_ranks[node])]
        # The length of a message is known when it arrives; it need not be sent before.
        lengths_here = {node: world.await_message(source, _TAG) for node, source in sources.items()}
        words = {node: n for lengths in world.node.allgather(lengths_here) for node, n in lengths.items()}
        stops = list(accumulate(words.get(node, 0) for node in range(nodes)))
        arriving = self._arriving.room(8 * stops[-1])
        received = [arriving[stop - words.get(node, 0) : stop] for node, stop in enumerate(stops)]
        waiting = list(sources.items())
        for first in range(0, len(waiting), MAX_PARTNERS):
            batch = waiting[first : first + MAX_PARTNERS]
            for request in [comm.Irecv(received[node], source, _TAG) for node, source in batch]:
                request.wait()
        for request in sent:
            request.wait()
        world.node.barrier()
        return received

    def _read(self, node: int, region: "Words") -> Iterator[tuple[int, Raw]]:
        """Yield the streams from ranks of a node to this one."""
        comm = self.world.node
        ranks = self.world.node_ranks[node]
        sizes = region[: len(ranks) * comm.size].view(np.int64)
        stops = _aligned(sizes.nbytes) + np.cumsum(sizes)
        content = region.view(np.uint8)
        for rank, stop, size in zip(
            ranks, stops[comm.rank :: comm.size].tolist(), sizes[comm.rank :: comm.size].tolist(), strict=True
        ):
            if size:
                yield rank, content[stop - size : stop]


class WaveLayout:
    """Offsets of the streams of a node's ranks in its memory."""

    def __init__(self, sizes: Sizes, firsts: Sequence[int]) -> None:
        self._sizes, self._firsts = sizes, firsts
        self._starts = np.empty_like(sizes)
        self.regions = [0]
        for first, stop in pairwise(firsts):
            part = np.ascontiguousarray(sizes[:, first:stop])
            stops = self.regions[-1] + _aligned(part.nbytes) + np.cumsum(part)
            self._starts[:, first:stop] = stops.reshape(part.shape) - part
            self.regions.append(int(stops[-1]))

    def write(self, rank: int, memory: Raw, streams: "Sequence[_Stream]") -> None:
        """Write the streams from a rank of the node to all ranks."""
        for node, (first, stop) in enumerate(pairwise(self._firsts)):
            at = self.regions[node] + 8 * rank * (stop - first)
            memory[at : at + 8 * (stop - first)] = raw(self._sizes[rank, first:stop])
        for start, stream in zip(self._starts[rank].tolist(), streams, strict=True):
            stream.write(memory[start : start + stream.size])


class _WaveWindow:
    """Growing memory of a node, reused so that its pages need not be allocated each time."""

    def __init__(self, share_words: "Callable[[int], Words]") -> None:
        self._share_words = share_words
        self._words: Words | None = None

    def room(self, nbytes: int) -> "Words":
        """Return uninitialized memory, shared by all ranks of the node (collective over the node)."""
        n = nbytes // 8
        if self._words is None or len(self._words) < n:
            self._words = None  # frees it before there is more
            self._words = self._share_words(int(GROWTH * n))
        return self._words[:n]


class _Stream:
    """Data from one rank to another, of `size` bytes: the description's length, the description, and the columns."""

    def __init__(self, pieces: Sequence[tuple[Head, Columns]]) -> None:
        self._pieces: list[Raw] = []
        if pieces:
            heads = [(head, {name: self._add(column) for name, column in columns.items()}) for head, columns in pieces]
            described = np.frombuffer(pickle.dumps(heads, protocol=5), np.uint8)
            self._pieces[:0] = [raw(np.array([len(described)])), described]
        self.size = sum(_aligned(len(piece)) for piece in self._pieces)

    def _add(self, column: Array) -> tuple[np.dtype[Any], tuple[int, ...], int]:
        """Add the bytes of a column; return its description."""
        hasobject = column.dtype.hasobject
        self._pieces.append(np.frombuffer(dumps(column.tolist()), np.uint8) if hasobject else raw(column))
        return column.dtype, column.shape, len(self._pieces[-1])

    def write(self, memory: Raw) -> None:
        """Write the stream."""
        at = 0
        for piece in self._pieces:
            memory[at : at + len(piece)] = piece
            at += _aligned(len(piece))


def _unpacked(received: Raw) -> Iterator[tuple[Head, dict[str, Array]]]:
    """Yield the pieces of a `_Stream`; columns of numbers are views of it."""
    at = 0

    def take(nbytes: int) -> Raw:
        nonlocal at
        start, at = at, at + _aligned(nbytes)
        return received[start : start + nbytes]

    def column(dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int) -> Array:
        piece = take(nbytes)
        if dtype.hasobject:
            return objects(pickle.loads(piece))
        return piece.view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype=dtype)

    (described,) = take(8).view(np.int64).tolist()
    for head, columns in pickle.loads(take(described)):
        yield head, {name: column(*fields) for name, fields in columns.items()}


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _parts(block: Block) -> tuple[Head, Columns]:
    return (block.form, block.width), {"bounds": block.bounds, **block.columns()}


def _block(head: Head, columns: dict[str, Array]) -> Block:
    form, width = head
    return Block(form, width, columns.pop("bounds"), **columns)
