"""Walking over trajectory files together: `walk_together()`, in which each rank walks over a part of each file.

What the ranks find lies in their node's memory, once, and is what one walk over the whole file would have found; where
that is not sure (a damaged file, coordinates that look like a frame), it is not given, and the first rank walks alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.io.remote.byte_file import ByteFile, status_of
from himach.io.remote.url import absolute
from himach.io.trajectory.index.walk import Walked, joined, walk_part
from himach.io.trajectory.index.xdr_index import XdrIndex
from himach.io.trajectory.xdr_header import sniff
from himach.parallel.collective import on_every_rank, on_first_rank
from himach.parallel.communicator import Communicator, SharedWords, World

__all__ = ["NodeBytes", "walk_together"]

#: Bytes of a file that are worth a rank's while.
PART_BYTES = 16 << 20
#: Sent from node to node at once.
ROUND_BYTES = 32 << 20


class NodeBytes:
    """Bytes in a node's memory that all its ranks see, the same on every node."""

    def __init__(self, world: World, n_bytes: int) -> None:
        self._world = world
        self._shared: SharedWords | None = world.share_words(max(1, -(-n_bytes // 8)))
        self.content: npt.NDArray[np.uint8] = self._shared.words.view(np.uint8)[:n_bytes]

    def settle(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Bring to each node what ranks of others have put there (collective).

        Places are the node that has some bytes, by its number, the first of them, and the one after the last.
        """
        self._world.node.barrier()
        if self._world.leaders is not None and self._world.leaders.size > 1:
            for node, begin, end in places:
                send(self._world.leaders, node, (begin, end), self._bytes_at, self.content)
        self._world.node.barrier()

    def _bytes_at(self, place: int, n_bytes: int) -> memoryview:
        return memoryview(self.content)[place : place + n_bytes]

    def close(self) -> None:
        """Free them (collective over the node)."""
        self.content = np.empty(0, np.uint8)
        if self._shared is not None:
            self._shared.close()
        self._shared = None


def send(
    leaders: Communicator,
    root: int,
    places: tuple[int, int],
    source: Callable[[int, int], bytes | memoryview],
    target: npt.NDArray[np.uint8] | None,
) -> None:
    """Send some bytes from one node's first rank to those of all others (collective over these).

    Parameters
    ----------
    leaders, root
        The first ranks, and who of them has the bytes.
    places
        The first byte, and the one after the last.
    source
        Gives so many bytes from a place on; asked of the one who has them.
    target
        Where they go; None if they are not wanted here.
    """
    begin, end = places
    for place in range(begin, end, ROUND_BYTES):
        some = slice(place, min(end, place + ROUND_BYTES))
        sent = leaders.bcast(bytes(source(place, some.stop - place)) if leaders.rank == root else None, root=root)
        if target is not None:
            target[some] = np.frombuffer(sent, np.uint8)


class _File(NamedTuple):
    path: str
    kind: str
    size: int
    changed: int


def walk_together(
    world: World, paths: Iterable[str | os.PathLike[str]], known: Callable[[], Mapping[str, XdrIndex]]
) -> tuple[dict[str, XdrIndex], list[NodeBytes]]:
    """Walk over the XTC and TRR files of a dataset (collective).

    Parameters
    ----------
    world
        The ranks.
    paths
        The dataset's files.
    known
        Gives, on the first rank, indexes that were kept: files that these are of are left out.

    Returns
    -------
    indexes
        By path, the same on all ranks; not of files that are small or not sound.
    held
        What they lie in, to be closed together at the end.
    """
    if world.comm.size == 1:
        return {}, []
    files = on_first_rank(world.comm, lambda: list(_long_files(paths, known())), share=True)
    indexes: dict[str, XdrIndex] = {}
    held: list[NodeBytes] = []
    for file in files:
        found = _walk(world, file)
        if found is not None:
            indexes[file.path], memory = found
            held.append(memory)
    return indexes, held


def _long_files(paths: Iterable[str | os.PathLike[str]], known: Mapping[str, XdrIndex]) -> Iterable[_File]:
    for each in paths:
        path = absolute(each)
        with contextlib.suppress(OSError):  # whoever opens the file tells what is wrong with it
            status = status_of(path)
            new = status.size - (known[path].size if path in known else 0)
            if os.path.isdir(path) or max(0, new) < 2 * PART_BYTES:
                continue
            with ByteFile(path) as file:
                kind = sniff(file.pread(4, 0))
            if kind is not None:
                yield _File(path, kind, status.size, status.changed)


def _walk(world: World, file: _File) -> tuple[XdrIndex, NodeBytes] | None:
    """Walk over one file together; None where it has to be walked over by one."""
    order = [rank for ranks in world.ranks_of for rank in ranks]  # neighbours on one node
    turn = order.index(world.comm.rank)
    parts = min(world.comm.size, file.size // PART_BYTES)
    mine = on_every_rank(world.comm, partial(_part, file, turn, parts))
    told = world.comm.gather(None if mine is None else mine[0])
    found, lengths = on_first_rank(
        world.comm, lambda: _joined(file, [told[rank] for rank in order[:parts]]), share=True
    )
    if found is None:
        return None
    memory = NodeBytes(world, found.n_bytes)
    spans = iter(found.spans)  # of the parts in which frames begin
    nodes = [node for node, ranks in enumerate(world.ranks_of) for _ in ranks]
    places = []
    for place, (node, length) in enumerate(zip(nodes, lengths, strict=False)):
        if length:
            begin = next(spans).place
            places.append((node, begin, begin + length))
            if place == turn and mine is not None:
                memory.content[slice(*places[-1][1:])] = np.frombuffer(mine[1], np.uint8)
    memory.settle(places)
    return found.with_content(memory.content), memory


def _joined(file: _File, walked: Sequence[Walked | None]) -> tuple[XdrIndex | None, list[int]]:
    """Return the index of the parts, and the bytes of those in which frames begin; None where there is none."""
    parts = [part for part in walked if part is not None]
    found = joined(*file, parts=parts) if len(parts) == len(walked) else None
    return found, [part.span.n_bytes if part.span.n_frames else 0 for part in parts]


def _part(file: _File, turn: int, parts: int) -> tuple[Walked, bytes] | None:
    if turn >= parts:
        return None
    try:
        return walk_part(file.path, file.kind, file.size, turn, parts)
    except (OSError, ValueError):  # whoever walks over the whole file tells
        return None
