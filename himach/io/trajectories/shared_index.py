"""Indexes of long trajectory files: all ranks walk over a file together, and each node holds its index once.

`walk_together()` gives the same index as one walk over the whole file. If that is uncertain (a damaged file,
coordinates that look like a frame), the first rank walks alone. An opened origin is sent from the first rank without
its long indexes, which `attach_columns()` brings to each node.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.io.trajectories.index.walk import WalkResult, join_parts, walk_part
from himach.io.trajectories.index.xdr_index import COLUMNS, NO_COLUMNS, Columns, XdrIndex
from himach.io.trajectories.origin import Origin
from himach.io.trajectories.urls.byte_file import ByteFile, read_status
from himach.io.trajectories.urls.names import absolute
from himach.io.trajectories.xdr_file import XdrFile
from himach.io.trajectories.xdr_header import sniff
from himach.ranks.collective import on_first_rank, run_collectively
from himach.ranks.communicator import SharedWords, World

#: Minimum bytes of a file per rank.
PART_BYTES = 16 << 20
#: Bytes sent from node to node at a time.
ROUND_BYTES = 32 << 20
#: Maximum bytes of an index that every rank holds itself.
SMALL_INDEX_BYTES = 1 << 20


class NodeBytes:
    """Shared memory of a node's ranks, with the same content on every node."""

    def __init__(self, world: World, n_bytes: int) -> None:
        self._world = world
        self._shared: SharedWords | None = world.share_words(max(1, -(-n_bytes // 8)))
        self.content: npt.NDArray[np.uint8] = self._shared.words.view(np.uint8)[:n_bytes]

    def exchange(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Copy bytes written by ranks of one node to all others (collective).

        `places`: number of the node that has the bytes, their first position, and the one after the last.
        """
        self._world.node.barrier()
        leaders = self._world.leaders
        if leaders is not None and leaders.size > 1:
            for node, first, last in places:
                for start in range(first, last, ROUND_BYTES):
                    piece = self.content[start : min(last, start + ROUND_BYTES)]
                    sent = leaders.bcast(piece.tobytes() if leaders.rank == node else None, root=node)
                    piece[:] = np.frombuffer(sent, np.uint8)
        self._world.node.barrier()

    def close(self) -> None:
        """Free the memory (collective over the node)."""
        self.content = np.empty(0, np.uint8)
        if self._shared is not None:
            self._shared.close()
        self._shared = None


class _File(NamedTuple):
    path: str
    kind: str
    size: int
    changed: int


def walk_together(
    world: World, paths: Iterable[str | os.PathLike[str]], load_indexes: Callable[[], Mapping[str, XdrIndex]]
) -> tuple[dict[str, XdrIndex], list[NodeBytes]]:
    """Walk over the XTC and TRR files of a dataset (collective)."""
    if world.comm.size == 1:
        return {}, []
    indexes: dict[str, XdrIndex] = {}
    memory: list[NodeBytes] = []
    for file in on_first_rank(world.comm, lambda: list(_long_files(paths, load_indexes())), share=True):
        walked = _walk(world, file)
        if walked is not None:
            indexes[file.path], content = walked
            memory.append(content)
    return indexes, memory


def _long_files(paths: Iterable[str | os.PathLike[str]], indexes: Mapping[str, XdrIndex]) -> Iterator[_File]:
    for name in paths:
        path = absolute(name)
        with contextlib.suppress(OSError):  # opening the file later reports the error
            status = read_status(path)
            new = status.size - (indexes[path].size if path in indexes else 0)
            if os.path.isdir(path) or max(0, new) < 2 * PART_BYTES:
                continue
            with ByteFile(path) as file:
                kind = sniff(file.pread(4, 0))
            if kind is not None:
                yield _File(path, kind, status.size, status.changed)


def _walk(world: World, file: _File) -> tuple[XdrIndex, NodeBytes] | None:
    """Walk over one file together; return None if the first rank has to walk over it alone."""
    order = [(rank, node) for node, ranks in enumerate(world.node_ranks) for rank in ranks]  # neighbours on one node
    position = [rank for rank, _ in order].index(world.comm.rank)
    n_parts = min(world.comm.size, file.size // PART_BYTES)
    walked, columns = run_collectively(world.comm, partial(_part, file, position, n_parts))
    by_rank = world.comm.allgather(walked)
    parts = [by_rank[rank] for rank, _ in order[:n_parts]]
    last = max((place for place, part in enumerate(parts) if part is not None and part.n_frames), default=None)
    if None in parts or last is None:
        return None
    rows = np.cumsum([0, *(part.n_frames for part in parts)])
    rows[last + 1 :] += 1  # the end of the last frame
    spans = list(itertools.pairwise((rows * COLUMNS.itemsize).tolist()))
    memory = NodeBytes(world, spans[-1][1])
    shared: Columns = memory.content.view(COLUMNS)
    if walked is not None:
        shared[rows[position] : rows[position + 1]] = columns[: rows[position + 1] - rows[position]]
    memory.exchange([(node, *span) for (_, node), span in zip(order, spans, strict=False) if span[0] < span[1]])
    index = on_first_rank(world.comm, partial(_join, file, parts, shared), share=True)
    if index is None:
        memory.close()
        return None
    index.columns = shared
    return index, memory


def _part(file: _File, position: int, n_parts: int) -> tuple[WalkResult | None, Columns]:
    if position < n_parts:
        with contextlib.suppress(OSError, ValueError):  # the walk over the whole file reports the error
            return walk_part(file.path, file.kind, file.size, position, n_parts)
    return None, NO_COLUMNS


def _join(file: _File, parts: Sequence[WalkResult], columns: Columns) -> XdrIndex | None:
    index = join_parts(*file, parts=parts, columns=columns)
    if index is not None:
        index.is_shared = True
    return index


def mark_shared(origin: Origin) -> None:
    """Exclude long indexes, and those that all ranks have, when an origin is sent."""
    for file in _files(origin):
        index = file.index
        index.is_shared = index.is_shared or index.columns.nbytes > SMALL_INDEX_BYTES


def attach_columns(world: World, origin: Origin, walked: Mapping[str, XdrIndex]) -> list[NodeBytes]:
    """Attach the columns to the indexes of an origin received from the first rank (collective)."""
    memory: list[NodeBytes] = []
    for file in _files(origin):
        index = file.index
        if not index.is_shared or world.comm.size == 1:
            continue
        if file.path in walked and walked[file.path].facts == index.facts:
            index.columns = walked[file.path].columns
        else:
            memory.append(_broadcast_index(world, index))
    return memory


def free(origin: Origin, memory: Sequence[NodeBytes]) -> None:
    """Free the memory of indexes; frames of the origin cannot be read afterwards (collective)."""
    for file in _files(origin):
        if memory and file.index.is_shared:
            file.index.columns = NO_COLUMNS
    for content in memory:
        content.close()


def _broadcast_index(world: World, index: XdrIndex) -> NodeBytes:
    """Copy an index from the first rank to each node."""
    memory = NodeBytes(world, (index.n_frames + 1) * COLUMNS.itemsize)
    if world.comm.rank == 0:
        memory.content[:] = np.ascontiguousarray(index.columns[: index.n_frames + 1]).view(np.uint8)
    memory.exchange([(world.comm.bcast(world.node_index), 0, len(memory.content))])
    index.columns = memory.content.view(COLUMNS)
    return memory


def _files(origin: Origin) -> list[XdrFile]:
    return [file for file, _ in origin.files() if isinstance(file, XdrFile)]
