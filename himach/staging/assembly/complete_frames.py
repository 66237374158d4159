"""Complete frames, by the number of atoms that all nodes have of each, and the result: `Finder`, `Assembled`.

An Allreduce of atom counts gives the frames that may be complete (`totals`). Whether their slices cover each atom once
is checked when they are assembled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from himach.io.push.held_slices import HeldSlices, SliceKind
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator, World
from himach.staging.assembly.target import FOREIGN, AssemblyTarget
from himach.staging.assembly.workers import WHOLE_FRAME, Team, assign, divide_among_ranks

#: Incomplete frames whose reason is printed.
MAX_NAMED_FRAMES = 8
#: Incomplete frames whose reason is kept.
MAX_REASONS = 1 << 20


@dataclass
class Assembled:
    """Result of assembling, the same on every rank."""

    frames: int = 0  # assembled by this call
    waiting: int = 0  # frames with atoms in no slice yet
    absent: dict[int, str] = field(default_factory=dict)  # reason by number of a missing frame
    nodes: dict[str, int] = field(default_factory=dict)  # frames assembled by each node in this call
    aside: int | None = None

    def note(self, reasons: Mapping[int, str]) -> None:
        """Record why frames are missing, unless a reason is known."""
        for number, reason in reasons.items():
            if len(self.absent) < MAX_REASONS:
                self.absent.setdefault(number, reason)

    def note_aside(self, first: int | None) -> None:
        """Record the first frame whose slices are left aside; None: none are."""
        if first is not None:
            self.aside = first if self.aside is None else min(self.aside, first)

    def __str__(self) -> str:
        places = ", ".join(f"{count} on {node}" for node, count in self.nodes.items())
        text = f"{self.frames} frames assembled{f' ({places})' if places else ''}"
        if self.waiting:
            text += f"; of {self.waiting} some slices are missing"
        if self.aside is not None:
            text += f"; slices of an earlier launch are left aside from frame {self.aside} on, as a later one has begun"
            text += ": their frames are there when it has pushed them"
        reasons = "".join(
            f"\n  frame {number}: {reason}" for number, reason in sorted(self.absent.items())[:MAX_NAMED_FRAMES]
        )
        return text + (f"; not whole:{reasons}" if reasons else "")


Numbers = npt.NDArray[np.int64]

#: Frames in one reduction of atom counts.
CHUNK_FRAMES = 1 << 20


def totals(
    leaders: Communicator, sum_op: Any, slices: HeldSlices, n_atoms: int, at_once: int = CHUNK_FRAMES
) -> Iterator[tuple[range | Numbers, npt.NDArray[Any]]]:
    """Yield batches of frames and the atoms that all nodes have of each (collective over the nodes' leaders)."""
    # After lost acknowledgements, every node may have the whole frame.
    kind = np.uint32 if n_atoms * leaders.size <= np.iinfo(np.uint32).max else np.int64
    numbers = leaders.allreduce(slices.frames, op=operator.or_)
    for start in range(0, len(numbers), at_once):
        first, last = numbers[start], numbers[min(start + at_once, len(numbers)) - 1]
        frames: range | Numbers = range(first, last + 1)
        if len(frames) > at_once:
            frames = np.array(numbers[start : start + at_once].to_array(), np.int64)
        sums = counts = slices.count_atoms(frames, kind)
        if leaders.size > 1:
            leaders.Allreduce(counts, sums := np.empty_like(counts), op=sum_op)
        yield frames, sums


def pick(frames: range | Numbers, places: Numbers) -> Numbers:
    """Return the frames at some positions."""
    return frames.start + places if isinstance(frames, range) else frames[places]


#: Frames, and the rank that assembles each.
Plan = tuple[Numbers, npt.NDArray[np.int32]]
T = TypeVar("T")

#: Frames whose ranks are planned at a time.
PLANNED_FRAMES = 1 << 16


class Finder:
    """Finds frames of one kind whose slices are complete."""

    def __init__(
        self,
        world: World,
        team: Team,
        target: AssemblyTarget,
        kind: SliceKind,
        slices: HeldSlices | None,
        result: Assembled,
    ) -> None:
        self._world, self._team, self._target, self._result = world, team, target, result
        self._n_atoms = kind.n_atoms
        self._slices = slices or HeldSlices()
        self.rank_slices = self._slices if world.leaders is None or team.part is None else self._slices.part(*team.part)

    def refresh(self) -> None:
        """Refresh the slices (collective)."""
        leads = self._world.leaders is not None
        run_collectively(self._world.comm, lambda: self._slices.refresh(atoms=leads))

    def plans(self, frames_at_once: int) -> Iterator[Plan]:
        """Yield frames that are complete by their atom counts, about `frames_at_once` per worker."""
        per_batch = frames_at_once * self._team.workers * max(1, len(self._team.nodes))
        batches = self._find_complete(per_batch) if self._world.leaders is not None else iter(())
        while True:
            numbers, ranks = self._from_leaders(partial(next, batches, None)) or (np.empty(0, np.int64), None)
            if ranks is None:
                return
            for start in range(0, len(numbers), per_batch):
                yield numbers[start : start + per_batch], ranks[start : start + per_batch]

    def _from_leaders(self, function: Callable[[], T]) -> T | None:
        """Call a function on the first ranks of nodes, over which it is collective; return its result on all ranks."""
        leads = self._world.leaders is not None
        result: T | None = self._world.node.bcast(
            run_collectively(self._world.comm, lambda: function() if leads else None)
        )
        return result

    # --- On the first rank of each node -------------------------------------------------------------------------------

    @property
    def _leaders(self) -> Communicator:
        assert self._world.leaders is not None
        return self._world.leaders

    def _find_complete(self, batch: int) -> Iterator[Plan]:
        """Yield complete frames and the rank that assembles each; ranks are balanced within each `batch`."""
        nodes = self._team.nodes
        for frames, atoms in totals(self._leaders, self._world.sum, self._slices, self._n_atoms):
            whole = pick(frames, np.flatnonzero(atoms >= self._n_atoms))
            self._note_incomplete(pick(frames, np.flatnonzero((atoms > 0) & (atoms < self._n_atoms))))
            at_once = max(1, PLANNED_FRAMES // batch) * batch
            for start in range(0, len(whole), at_once):
                numbers = whole[start : start + at_once]
                shares = self._shares(numbers)
                chosen = [assign(shares[nodes, offset : offset + batch]) for offset in range(0, len(numbers), batch)]
                ranks = [divide_among_ranks(part, [self._team.ranks[node] for node in nodes]) for part in chosen]
                yield numbers, np.concatenate(ranks)

    def _shares(self, numbers: Numbers) -> Numbers:
        """Return the atoms that each node has of frames, `WHOLE_FRAME` for a whole frame (collective)."""
        counts = self._slices.count_atoms(numbers)
        counts[run_collectively(self._leaders, partial(self._target.holds, numbers))] = WHOLE_FRAME
        return np.stack(self._leaders.allgather(counts))

    def _native(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which frames any node has natively (collective)."""
        own = run_collectively(self._leaders, partial(self._target.holds, numbers))
        anywhere: npt.NDArray[np.bool_] = self._leaders.allreduce(own, op=np.logical_or)
        return anywhere

    def _note_incomplete(self, numbers: Numbers) -> None:
        """Record incomplete frames; drop the remaining slices of frames that are native already."""
        if not len(numbers):
            return
        native = self._native(numbers)
        run_collectively(self._leaders, partial(self._slices.drop, numbers[native]))
        waiting = numbers[~native]
        self._result.waiting += len(waiting)
        listed = [int(number) for number in waiting[:MAX_NAMED_FRAMES]]
        by_node = self._leaders.allgather((self._slices.ranks, [self._slices.ranks_with(number) for number in listed]))
        ranks = {rank for node_ranks, _ in by_node for rank in node_ranks}
        for i, number in enumerate(listed):
            missing = sorted(ranks - {rank for _, having in by_node for rank in having[i]})
            names = ", ".join(map(str, missing[:MAX_NAMED_FRAMES]))
            reason = f"no slice of rank{'s' * (len(missing) > 1)} {names}{', ...' * (len(missing) > MAX_NAMED_FRAMES)}"
            self._result.note({number: reason if missing else "some atoms are in no slice"})

    def drop_aside(self) -> None:
        """Record the slices left aside; drop those of frames that are native by now (collective)."""

        def find_first_aside() -> int | None:
            by_node = self._leaders.allgather(self._slices.aside)
            numbers = np.unique(np.concatenate(by_node))
            native = self._native(numbers)
            run_collectively(self._leaders, partial(self._slices.drop, numbers[native]))
            return int(numbers[~native][0]) if not native.all() else None

        self._result.note_aside(self._from_leaders(find_first_aside))

    def forget_native(self) -> None:
        """Remove the reasons of frames that another process has assembled meanwhile (collective)."""

        def forget() -> tuple[int, dict[int, str]]:
            result = self._result
            numbers = np.array(
                sorted(number for number, reason in result.absent.items() if not reason.startswith(FOREIGN)), np.int64
            )
            for number in numbers[self._native(numbers)].tolist():
                result.absent.pop(number, None)
            return result.waiting, result.absent

        state = self._from_leaders(forget)
        assert state is not None
        self._result.waiting, self._result.absent = state
