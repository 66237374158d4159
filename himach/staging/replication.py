"""Copies of staged frames from node to node: `replicate()`; damaged ones are found and replaced where that is asked.

What is held where is told by all nodes' flags, so that each computes the same moves by itself (`plan`). Frames then go
from node to node in rounds of bounded memory, by the first rank of each; the origin is not asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.dataset.attachment import COPIES
from himach.io.frame_source import ReadOptions
from himach.io.store.store import Dataset
from himach.parallel.collective import run_collectively
from himach.parallel.communicator import Communicator, World
from himach.staging.shares import Numbers

Flags = npt.NDArray[np.bool_]
Moves = Mapping[tuple[int, int], Numbers]  # frames by the node that they come from, and that they go to
Heal = Callable[[Numbers], Numbers]  # writes frames of this node anew, and returns which

FRAMES_AT_ONCE = 1 << 20  # of which nodes tell each other what they hold
BYTES_AT_ONCE = 256 << 20  # of frames that a node sends the others in a round
SAMPLED_FRAMES = 100  # frames that are looked at for their size
VECTORS_BYTES = 36  # of an atom, with velocities and forces
COPY_TAG = 41
NOTHING: Numbers = np.empty(0, np.int64)
DAMAGED = ("damaged", "error of the disk")  # reasons of a miss that will be one again


def check_copies(world: World, copies: int) -> None:
    """Check that there are nodes for so many copies."""
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

    run_collectively(world.comm, attach)


def wanted_copies(dataset: Dataset) -> int:
    """Return how many copies of each frame were asked for when the dataset was staged; 0: nobody said."""
    noted = dataset.attachment(COPIES) or b""
    return int(noted) if noted.isdigit() else 0


def replicate(
    world: World, dataset: Dataset, n_frames: int, copies: int, heal: Heal | None = None
) -> tuple[int, Numbers]:
    """Copy frames that are native on fewer nodes than asked for (collective).

    Frames that are native nowhere stay so. Each copy that was made can be read when this returns; of those that could
    not be, as what they are made of is damaged or has gone, it is told how many.
    """
    check_copies(world, copies)

    def work() -> tuple[int, int, Numbers]:
        if world.leaders is None:
            return 0, 0, NOTHING
        return _replicate(world.leaders, dataset, n_frames, copies, heal)

    made, left, lost = run_collectively(world.comm, work)
    run_collectively(world.comm, dataset.close)
    left = world.comm.allreduce(left)
    if left and world.comm.rank == 0:
        print(
            f"himach: {left} copies were not made, as frames could not be read or were evicted meanwhile: "
            "himach stage --repair makes them",
            file=sys.stderr,
        )
    return int(world.comm.allreduce(made)), world.comm.bcast(lost)


def _replicate(
    leaders: Communicator, dataset: Dataset, n_frames: int, copies: int, heal: Heal | None
) -> tuple[int, int, Numbers]:
    """Copy frames; return how many this node has written and could not read, and which are lost (of first ranks)."""
    made = left = at = 0
    lost = [NOTHING]
    run_collectively(leaders, dataset.refresh)
    native = dataset.native
    while (span := _next_span(leaders, native, at, n_frames)) is not None:
        at = span.stop
        moves, healed, damaged = _plan_span(leaders, dataset, span, copies, heal)
        made += healed
        lost.append(damaged)
        for some in _rounds(leaders, dataset, moves):
            outgoing = run_collectively(leaders, partial(_read_out, dataset, some, leaders.rank))
            left += sum(len(some[leaders.rank, target]) - len(frames) for target, frames in outgoing.items())
            made += run_collectively(leaders, partial(_pass_on, leaders, dataset, some, outgoing))
    return made, left, np.concatenate(lost)


def _next_span(leaders: Communicator, native: BitMap64, at: int, n_frames: int) -> range | None:
    """Return the next frames from `at` on, from one that a node has to another; None: the end."""
    here = native.next_set_bit(at) if native and native.max() >= at else n_frames
    begin = leaders.allreduce(here, op=min)
    if begin >= n_frames:
        return None
    before = native.rank(min(n_frames, begin + FRAMES_AT_ONCE) - 1)
    return range(begin, leaders.allreduce(native[before - 1] + 1 if before else 0, op=max))


def _plan_span(
    leaders: Communicator, dataset: Dataset, span: range, copies: int, heal: Heal | None
) -> tuple[Moves, int, Numbers]:
    """Return what goes where, how many frames were written anew here, and which are lost."""
    mine = run_collectively(leaders, lambda: dataset.holds(np.arange(span.start, span.stop), native=True))
    good = _of_all(leaders, mine)
    if heal is None:
        return plan(good, span, copies), 0, NOTHING

    def flags(find: Heal, some: Flags) -> Flags:
        """Flag those of some frames that a function returns."""
        found = np.zeros(len(span), dtype=bool)
        found[run_collectively(leaders, lambda: find(np.flatnonzero(some) + span.start)) - span.start] = True
        return found

    damaged = flags(partial(_unreadable, dataset), mine)
    bad = _of_all(leaders, damaged)
    good &= ~bad
    lost = bad.any(axis=0) & ~good.any(axis=0)
    healed = np.zeros_like(mine)
    if lost.any():
        healed = flags(heal, damaged & lost)
        good |= (well := _of_all(leaders, healed))
        bad &= ~well
        lost &= ~good.any(axis=0)
    moves = plan(good, span, copies, bad & good.any(axis=0))
    return moves, int(healed.sum()), np.flatnonzero(lost) + span.start


def _of_all(leaders: Communicator, mine: Flags) -> Flags:
    """Return the flags of all nodes, bool (nodes, n)."""
    bits = np.frombuffer(b"".join(leaders.allgather(np.packbits(mine).tobytes())), np.uint8)
    return np.unpackbits(bits.reshape(leaders.size, -1), axis=1, count=len(mine)).astype(bool)


def _unreadable(dataset: Dataset, numbers: Numbers) -> Numbers:
    """Return which of the frames that a store has natively are damaged; every byte of them is checked."""
    reading = dataset.read(numbers, ReadOptions(unpack=False))
    wrong = [
        number
        for number, frame in zip(numbers.tolist(), reading, strict=True)
        if frame is None and reading.reason in DAMAGED
    ]
    return np.array(wrong, dtype=np.int64)


def plan(held: Flags, span: range, copies: int, anew: Flags | None = None) -> dict[tuple[int, int], Numbers]:
    """Return which frames go from which node to which, the same on every node.

    The copies of a node's frames lie on different other ones.

    Parameters
    ----------
    held
        For each node, which frames of the span it holds natively; bool (nodes, frames).
    span
        Frame numbers, of step 1.
    copies
        How many nodes are to hold each frame that one of them holds.
    anew
        For each node, which frames it gets whatever their number of copies, since its own are damaged.
    """
    nodes = len(held)
    there = np.array(held)
    numbers = np.arange(span.start, span.stop)
    first = there.argmax(axis=0)
    home = np.where(there[numbers % nodes, np.arange(len(numbers))], numbers % nodes, first)
    moves: dict[tuple[int, int], list[Numbers]] = {}

    def move(wanted: Flags, target: Numbers) -> None:
        for route in {(int(a), int(b)) for a, b in zip(home[wanted], target[wanted], strict=True)}:
            moves.setdefault(route, []).append(numbers[wanted & (home == route[0]) & (target == route[1])])

    for node, wanted in enumerate(() if anew is None else anew):
        move(wanted, np.full(len(numbers), node))
        there[node] |= wanted
    missing = np.where(there.any(axis=0), copies - there.sum(axis=0), 0)
    for copy in range(1, nodes):
        target = (home + 1 + (numbers // nodes + copy - 1) % (nodes - 1)) % nodes
        wanted = (missing > 0) & ~there[target, np.arange(len(numbers))]
        move(wanted, target)
        missing = missing - wanted
    return {route: np.sort(np.concatenate(some)) for route, some in sorted(moves.items())}


def _rounds(leaders: Communicator, dataset: Dataset, moves: Moves) -> Iterator[dict[tuple[int, int], Numbers]]:
    """Yield what is moved at a time, in as many rounds on every node."""
    mine = [numbers[:SAMPLED_FRAMES] for (source, _), numbers in moves.items() if source == leaders.rank]
    atoms = run_collectively(leaders, lambda: int(dataset.atoms(mine[0]).max(initial=1)) if mine else 1)
    largest = leaders.allreduce(VECTORS_BYTES * atoms, op=max)
    most = max(map(len, moves.values()), default=0)
    rounds = -(-most * largest * leaders.size // BYTES_AT_ONCE)
    at_once = {route: -(-len(numbers) // rounds) for route, numbers in moves.items()}
    for turn in range(rounds):
        yield {route: numbers[turn * at_once[route] :][: at_once[route]] for route, numbers in moves.items()}


def _read_out(dataset: Dataset, moves: Moves, node: int) -> dict[int, list[RawFrame]]:
    """Read what a node sends, by the node that gets it; frames that cannot be read are left out."""
    mine = {target: numbers for (source, target), numbers in moves.items() if source == node}
    every = np.unique(np.concatenate([NOTHING, *mine.values()]))
    found = {frame.number: deepcopy(frame) for frame in dataset.read(every) if frame is not None}
    return {
        target: [found[number] for number in numbers.tolist() if number in found] for target, numbers in mine.items()
    }


def _pass_on(
    leaders: Communicator, dataset: Dataset, moves: Moves, outgoing: Mapping[int, Sequence[RawFrame]]
) -> int:  # fmt: skip
    """Send what was read, and write what comes; return how many frames were written."""
    sent = [leaders.isend(frames, target, COPY_TAG) for target, frames in outgoing.items()]
    coming = [leaders.recv(source=source, tag=COPY_TAG) for source, target in moves if target == leaders.rank]
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
