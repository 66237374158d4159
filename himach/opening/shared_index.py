"""What of an opened origin lies once on a node: `settle()` puts its indexes there, on all ranks.

An origin travels from the first rank to the others without the bytes of its long indexes. A node has them in its
memory, where ranks have walked over the file together, or reads them from its own store, or gets them from the first
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from himach.io.trajectory.index.xdr_index import Stored, XdrIndex
from himach.io.trajectory.origin import Origin
from himach.io.trajectory.xdr_file import XdrFile
from himach.opening.parallel_scan import NodeBytes, send
from himach.parallel.communicator import World

__all__ = ["free", "leave_behind", "settle"]

#: Bytes of an index that every rank may have for itself.
SMALL_INDEX_BYTES = 1 << 20


def leave_behind(origin: Origin, walked: Mapping[str, XdrIndex]) -> dict[str, XdrIndex]:
    """Have an origin travel without its long indexes, and without those that all ranks have; return those."""
    for file in _files(origin):
        index = file.index
        if index.content is not walked.get(file.path, index).content:
            index.stays = len(index.content) > SMALL_INDEX_BYTES
            if not index.stays and isinstance(index.content, Stored):
                _bring(index, index.content)
        else:
            index.stays = file.path in walked or len(index.content) > SMALL_INDEX_BYTES
    return {file.path: replace(file.index, _pieces={}) for file in _files(origin) if file.index.stays}


def _bring(index: XdrIndex, stored: Stored) -> None:
    """Read an index whole; where that fails it is walked for."""
    try:
        index.content = np.frombuffer(stored.read(0, len(stored)), np.uint8)
    except OSError:
        index.renew()


def settle(
    world: World,
    origin: Origin,
    walked: Mapping[str, XdrIndex],
    own: Callable[[], Mapping[str, XdrIndex]],
    left: Mapping[str, XdrIndex],
) -> Sequence[NodeBytes]:
    """Give the indexes of an origin that has travelled their bytes (collective).

    Parameters
    ----------
    world
        The ranks.
    origin
        From the first rank; on each rank its own.
    walked
        What all ranks have, as `walk_together` gave it.
    own
        Gives indexes that this node's store has, on the node's first rank.
    left
        What was left behind, on the first rank.

    Returns
    -------
    list
        What they lie in, to be closed together at the end.
    """
    held: list[NodeBytes] = []
    for file in _files(origin):
        index = file.index
        if index.stays and world.comm.rank == 0:
            index.become(left[file.path])
        if not index.stays or world.comm.size == 1:
            continue
        if file.path in walked and walked[file.path].facts == index.facts:
            index.become(walked[file.path])
            continue
        held += _brought(world, index, own().get(file.path) if world.leaders is not None else None)
    return held


def free(origin: Origin, held: Sequence[NodeBytes]) -> None:
    """Free what indexes lie in; no frame of the origin can be read any more (collective)."""
    for file in _files(origin):
        if held and file.index.stays:
            file.index.become(replace(file.index, content=np.empty(0, np.uint8), again=None, _pieces={}))
    for memory in held:
        memory.close()


def _brought(world: World, index: XdrIndex, own: XdrIndex | None) -> list[NodeBytes]:
    """Give an index its bytes: those that this node's store has, else the first rank's."""
    mine = None
    if own is not None and own.facts == index.facts and isinstance(own.content, Stored):
        mine = replace(own, stays=False, _pieces={})
    mine = world.node.bcast(mine)
    root = world.comm.bcast(world.node_index)
    memory = None if mine is not None else NodeBytes(world, index.n_bytes)
    if world.leaders is not None and world.leaders.allreduce(memory is not None):
        target = None if memory is None else memory.content
        send(world.leaders, root, (0, index.n_bytes), index.bytes_at, target)
    world.node.barrier()
    if mine is not None:
        index.become(mine)
    elif memory is not None:
        index.become(replace(index, content=memory.content, _pieces={}))
    return [] if memory is None else [memory]


def _files(origin: Origin) -> list[XdrFile]:
    return [file for file, _ in origin.files() if isinstance(file, XdrFile)]
