"""Copies of staged frames from node to node: `replicate()`, without the origin.

All nodes exchange flags of the frames they hold, so that each computes the same moves by itself (`plan`).
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import COPIES
from himach.io.frame_source import Numbers
from himach.io.store.cached_frames import select_range
from himach.io.store.store import Dataset
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator, World

Flags = npt.NDArray[np.bool_]
Moves = Mapping[tuple[int, int], Numbers]  # frames by (source node, target node)

FRAMES_AT_ONCE = 1 << 20  # frames whose flags nodes exchange at a time
BYTES_AT_ONCE = 256 << 20  # bytes of frames that a node sends in a round
SAMPLED_FRAMES = 100  # frames sampled for their size
VECTORS_BYTES = 36  # bytes per atom, with velocities and forces
FRAMES_TAG = 41
NOTHING: Numbers = np.empty(0, np.int64)


def check_copies(world: World, copies: int) -> None:
    """Raise an error if there are fewer nodes than copies."""
    if copies > len(world.nodes):
        raise UsageError(
            f"{copies} copies of each frame lie on as many nodes, and this runs on {len(world.nodes)} "
            f"({', '.join(world.nodes)})"
        )


def attach_copies(world: World, dataset: Dataset, copies: int) -> None:
    """Record the number of copies in each node's store, so that it is known when one store is lost."""
    content = str(copies).encode()

    def attach() -> None:
        if world.leaders is not None and dataset.attachment(COPIES) != content:
            dataset.attach(COPIES, content)

    run_collectively(world.comm, attach)


def requested_copies(dataset: Dataset) -> int:
    """Return the number of copies of each frame requested when the dataset was staged; 0 if none was."""
    content = dataset.attachment(COPIES) or b""
    return int(content) if content.isdigit() else 0


def replicate(world: World, dataset: Dataset, n_frames: int, copies: int) -> int:
    """Copy frames that are native on fewer than `copies` nodes; return how many, print how many failed (collective)."""
    check_copies(world, copies)

    def work() -> tuple[int, int]:
        return (0, 0) if world.leaders is None else _replicate(world.leaders, dataset, n_frames, copies)

    written, unread = map(world.comm.allreduce, run_collectively(world.comm, work))
    run_collectively(world.comm, dataset.close)
    if unread and world.comm.rank == 0:
        print(
            f"himach: {unread} copies were not made, as frames could not be read or were evicted meanwhile: "
            "himach stage --repair makes them",
            file=sys.stderr,
        )
    return int(written)


def _replicate(leaders: Communicator, dataset: Dataset, n_frames: int, copies: int) -> tuple[int, int]:
    """Copy frames; return the numbers written and not received by this node."""
    written = unread = 0
    run_collectively(leaders, dataset.refresh)
    present = select_range(leaders.allreduce(dataset.native, op=operator.or_), 0, n_frames)
    for start in range(0, len(present), FRAMES_AT_ONCE):
        numbers = np.asarray(present[start : start + FRAMES_AT_ONCE].to_array(), dtype=np.int64)
        own = run_collectively(leaders, partial(dataset.holds, numbers, native=True))
        for batch in _rounds(leaders, dataset, plan(np.array(leaders.allgather(own)), numbers, copies)):
            frames = exchange(leaders, batch, dataset.read)
            requested = sum(len(moved) for (_, target), moved in batch.items() if target == leaders.rank)
            unread += requested - len(frames)
            written += run_collectively(leaders, partial(write_natively, dataset, frames))
    return written, unread


def plan(native: Flags, numbers: Numbers, copies: int) -> dict[tuple[int, int], Numbers]:
    """Return the frames, of ascending `numbers`, to move by (source node, target node), the same on every node.

    `native`, bool (nodes, frames): what each has. The copies of a node's frames are spread over the other nodes.
    """
    nodes = len(native)
    present = np.array(native)
    first_holder = present.argmax(axis=0)
    source = np.where(present[numbers % nodes, np.arange(len(numbers))], numbers % nodes, first_holder)
    moves: dict[tuple[int, int], list[Numbers]] = {}
    missing = np.where(present.any(axis=0), copies - present.sum(axis=0), 0)
    for copy in range(1, nodes):
        target = (source + 1 + (numbers // nodes + copy - 1) % (nodes - 1)) % nodes
        selected = (missing > 0) & ~present[target, np.arange(len(numbers))]
        for route in {(int(a), int(b)) for a, b in zip(source[selected], target[selected], strict=True)}:
            moves.setdefault(route, []).append(numbers[selected & (source == route[0]) & (target == route[1])])
        missing = missing - selected
    return {route: np.sort(np.concatenate(parts)) for route, parts in sorted(moves.items())}


def _rounds(leaders: Communicator, dataset: Dataset, moves: Moves) -> Iterator[dict[tuple[int, int], Numbers]]:
    """Yield the moves of each round; the number of rounds is the same on every node."""
    samples = [numbers[:SAMPLED_FRAMES] for (source, _), numbers in moves.items() if source == leaders.rank]
    atoms = run_collectively(leaders, lambda: int(dataset.atoms(samples[0]).max(initial=1)) if samples else 1)
    max_bytes = leaders.allreduce(VECTORS_BYTES * atoms, op=max)
    max_frames = max(map(len, moves.values()), default=0)
    rounds = -(-max_frames * max_bytes * leaders.size // BYTES_AT_ONCE)
    at_once = {route: -(-len(numbers) // rounds) for route, numbers in moves.items()}
    for index in range(rounds):
        yield {route: numbers[index * at_once[route] :][: at_once[route]] for route, numbers in moves.items()}


def exchange(
    comm: Communicator, moves: Moves, read: Callable[[Numbers], Iterable[RawFrame | None]]
) -> list[RawFrame]:  # fmt: skip
    """Send the frames of `moves` by (source rank, target rank), but for unreadable ones; return those received here."""
    sends = {target: numbers for (source, target), numbers in moves.items() if source == comm.rank}
    needed = np.unique(np.concatenate([NOTHING, *sends.values()]))

    def read_out() -> dict[int, list[RawFrame]]:
        frames = {frame.number: deepcopy(replace(frame, more=None)) for frame in read(needed) if frame is not None}
        return {target: [frames[n] for n in numbers.tolist() if n in frames] for target, numbers in sends.items()}

    outgoing = run_collectively(comm, read_out)  # before any rank sends: else a message stays for the next exchange
    requests = [comm.isend(group, target, FRAMES_TAG) for target, group in outgoing.items()]
    received = [comm.recv(source=source, tag=FRAMES_TAG) for source, target in moves if target == comm.rank]
    for request in requests:
        request.wait()
    return [frame for group in received for frame in group]


def write_natively(dataset: Dataset, frames: Iterable[RawFrame], report: Callable[[int], None] | None = None) -> int:
    """Write frames to a node's store; return the number of new ones."""
    written = 0
    for count, frame in enumerate(frames, 1):
        written += dataset.write(
            frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True
        )
        if report is not None:
            report(count)
    dataset.flush()
    return written
