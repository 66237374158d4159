"""Copies of staged frames from node to node: `replicate()`.

What is held where is told by all nodes' bitmaps, so that each computes the same moves by itself. Frames then go from
node to node in rounds of bounded memory, by the first rank of each; the origin is not asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.dataset.attachment import COPIES
from himach.io.store.store import Dataset
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import Communicator, World
from himach.staging.copy_plan import Numbers, Route, plan
from himach.staging.repair import look, own

__all__ = ["attach_copies", "check_copies", "replicate", "wanted_copies", "write_natively"]

FRAMES_AT_ONCE = 1 << 20  # of which nodes tell each other what they hold
BYTES_AT_ONCE = 256 << 20  # of frames that a node sends the others in a round
SAMPLED_FRAMES = 100  # frames that are looked at for their size
VECTORS_BYTES = 36  # of an atom, with velocities and forces
COPY_TAG = 41


def check_copies(world: World, copies: int) -> None:
    """Check that there are nodes for so many copies.

    Raises
    ------
    UsageError
        There are not.
    """
    if copies > len(world.nodes):
        raise UsageError(
            f"{copies} copies of each frame lie on as many nodes, and this runs on {len(world.nodes)} "
            f"({', '.join(world.nodes)})"
        )


def attach_copies(world: World, dataset: Dataset, copies: int) -> None:
    """Note in each node's store how many copies are wanted, so that any of them tells it when one is lost."""
    content = str(copies).encode()

    def attach() -> None:
        if world.leaders is not None and dataset.attachment(COPIES) != content:
            dataset.attach(COPIES, content)

    on_every_rank(world.comm, attach)


def wanted_copies(dataset: Dataset) -> int:
    """Return how many copies of each frame were asked for when the dataset was staged; 0: nobody said."""
    noted = dataset.attachment(COPIES) or b""
    return int(noted) if noted.isdigit() else 0


def replicate(
    world: World, dataset: Dataset, n_frames: int, copies: int, heal: Callable[[Numbers], Numbers] | None = None
) -> tuple[int, Numbers]:
    """Copy frames that are native on fewer nodes than asked for (collective).

    Frames that are native nowhere stay so. Each copy that was made can be read when this returns; of those that could
    not be, as what they are made of is damaged or has gone, it is told how many.

    Parameters
    ----------
    world
        The ranks.
    dataset
        In each node's store.
    n_frames
        Of the dataset.
    copies
        On how many nodes each frame is to be.
    heal
        If given, all that the nodes hold is checked, and copies that are damaged are replaced. Where there is no other
        one this writes those of a node anew, and returns which.

    Returns
    -------
    tuple
        How many copies were made, and the frames of which all copies are damaged, on every rank.

    Raises
    ------
    StoreFullError
        A node's quota or disk has no room for its part; what was copied is kept.
    """
    check_copies(world, copies)
    made = left = 0
    lost = [np.empty(0, np.int64)]
    on_every_rank(world.comm, dataset.refresh)
    native = dataset.native if world.leaders is not None else BitMap64()
    at = 0
    while (span := _next_span(world.comm, native, at, n_frames)) is not None:
        at = span.stop
        moves, healed, wrong = on_every_rank(world.comm, partial(_plan, world, dataset, span, copies, heal))
        moved, unread = _move(world, dataset, moves)
        made, left = made + healed + moved, left + unread
        lost.append(wrong)
    on_every_rank(world.comm, dataset.close)
    left = world.comm.allreduce(left)
    if left and world.comm.rank == 0:
        print(
            f"himach: {left} copies were not made, as frames could not be read or were evicted meanwhile: "
            "himach stage --repair makes them",
            file=sys.stderr,
        )
    return int(world.comm.allreduce(made)), world.comm.bcast(np.concatenate(lost))


def _next_span(comm: Communicator, native: BitMap64, at: int, n_frames: int) -> range | None:
    """Return the next frames from `at` on, from one that a node has to another; None: the end (collective)."""
    here = native.next_set_bit(at) if native and native.max() >= at else n_frames
    begin = comm.allreduce(here, op=min)
    if begin >= n_frames:
        return None
    before = native.rank(min(n_frames, begin + FRAMES_AT_ONCE) - 1)
    return range(begin, comm.allreduce(native[before - 1] + 1 if before else 0, op=max))


def _plan(
    world: World, dataset: Dataset, span: range, copies: int, heal: Callable[[Numbers], Numbers] | None
) -> tuple[dict[Route, Numbers], int, Numbers]:
    """Return what goes where, how many frames were written anew here, and which are lost."""
    if world.leaders is None:
        return {}, 0, np.empty(0, np.int64)
    bits = _held(world, dataset, span)
    held = [np.unpackbits(one, count=len(span), bitorder="little").astype(bool) for one in bits]
    if heal is None:
        return plan(held, span, copies), 0, np.empty(0, np.int64)
    found, healed = look(world.leaders, dataset, held, span, heal)
    return plan(found.good, span, copies, found.anew), healed, np.flatnonzero(found.lost) + span.start


def _move(world: World, dataset: Dataset, moves: dict[Route, Numbers]) -> tuple[int, int]:
    """Copy frames from node to node; return how many this rank has written, and how many it could not read."""
    rounds = 0 if world.leaders is None else _rounds(world.leaders, dataset, moves)
    rounds = world.comm.bcast(rounds)
    if not rounds:
        return 0, 0
    at_once = {route: -(-len(numbers) // rounds) for route, numbers in moves.items()}
    made = left = 0
    for turn in range(rounds):
        some = {route: numbers[turn * at_once[route] :][: at_once[route]] for route, numbers in moves.items()}
        outgoing = _read_out(world, dataset, some)
        left += sum(len(some[world.node_index, target]) - len(frames) for target, frames in outgoing.items())
        made += on_every_rank(world.comm, partial(_pass, world, dataset, some, outgoing))
    return made, left


def _held(world: World, dataset: Dataset, span: range) -> list[npt.NDArray[np.uint8]]:
    """Return which frames each node holds natively, as bits."""
    assert world.leaders is not None
    native, alien = (np.zeros(-(-len(span) // 64), dtype=np.uint64) for _ in range(2))
    dataset.mark(span, native, alien)
    return [np.frombuffer(one, dtype=np.uint8) for one in world.leaders.allgather(native.tobytes())]


def _rounds(leaders: Communicator, dataset: Dataset, moves: Mapping[Route, Numbers]) -> int:
    """Return in how many rounds frames are passed on: the same on every node."""
    mine = [numbers for (source, _), numbers in moves.items() if source == leaders.rank]
    largest = leaders.allreduce(_frame_bytes(dataset, mine[0]) if mine else 0, op=max)
    most = max(map(len, moves.values()), default=0)
    return -(-most * max(1, largest) * leaders.size // BYTES_AT_ONCE) if most else 0


def _frame_bytes(dataset: Dataset, numbers: Numbers) -> int:
    """Return the bytes of a frame as the first of these says that can be read; at most, if none of many can."""
    some = numbers[:SAMPLED_FRAMES]
    for frame in dataset.read(some):
        if frame is not None:
            return frame_bytes(frame)
    return VECTORS_BYTES * int(dataset.atoms(some).max(initial=0))


def frame_bytes(frame: RawFrame) -> int:
    """Return the bytes of a frame's vectors."""
    return sum(field.nbytes for field in (frame.positions, frame.velocities, frame.forces) if field is not None)


def _read_out(world: World, dataset: Dataset, moves: Mapping[Route, Numbers]) -> dict[int, list[RawFrame]]:
    """Read what this node sends, by the node that gets it (collective); frames that cannot be read are left out."""

    def read() -> dict[int, list[RawFrame]]:
        if world.leaders is None:
            return {}
        mine = {target: numbers for (source, target), numbers in moves.items() if source == world.leaders.rank}
        every = np.unique(np.concatenate([np.empty(0, np.int64), *mine.values()]))
        found = {frame.number: own(frame) for frame in dataset.read(every) if frame is not None}
        return {
            target: [found[number] for number in numbers.tolist() if number in found]
            for target, numbers in mine.items()
        }

    return on_every_rank(world.comm, read)


def _pass(
    world: World, dataset: Dataset, moves: Mapping[Route, Numbers], outgoing: Mapping[int, list[RawFrame]]
) -> int:
    """Send what was read, and write what comes; return how many frames were written."""
    if world.leaders is None:
        return 0
    sent = [world.leaders.isend(frames, target, COPY_TAG) for target, frames in outgoing.items()]
    coming = [
        world.leaders.recv(source=source, tag=COPY_TAG) for source, target in moves if target == world.leaders.rank
    ]
    for request in sent:
        request.wait()
    return write_natively(dataset, (frame for frames in coming for frame in frames))


def write_natively(dataset: Dataset, frames: Iterable[RawFrame], told: Callable[[int], None] | None = None) -> int:
    """Write frames to a node's store; return how many were not there."""
    written = 0
    for done, frame in enumerate(frames, 1):
        written += dataset.write(
            frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True
        )
        if told is not None:
            told(done)
    dataset.flush()
    return written
