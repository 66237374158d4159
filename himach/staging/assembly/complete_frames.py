"""Which frames are whole, by how many atoms all nodes have of each, and what came of it: `Finder`, `Assembled`.

Nodes add their atoms up by one more Allreduce, which says which frames may be whole (`totals`). Whether their slices
cover all atoms once is seen where they are put together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from himach.io.push.held_slices import HeldSlices
from himach.io.push.launches import Followed
from himach.io.push.slice_kinds import SliceKind
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import Communicator, World
from himach.staging.assembly.target import OTHERS, Target
from himach.staging.assembly.workers import HELD, Team, among_ranks, assign

__all__ = ["CHUNK_FRAMES", "Assembled", "Finder", "Plan", "pick", "totals"]

#: Frames that are not whole of which it is told why.
MAX_TOLD_FRAMES = 8
#: Of so many it is kept.
MAX_REASONS = 1 << 20


@dataclass
class Assembled:
    """What came of assembling, the same on every rank.

    Attributes
    ----------
    frames
        Put together now.
    waiting
        Of which some atoms are in no slice yet.
    absent
        Why others are not there: frame number and reason.
    nodes
        Frames put together now by each node.
    aside
        The first frame of which slices of an earlier launch are left aside, as a later one has begun there or before;
        None if none are.
    """

    frames: int = 0
    waiting: int = 0
    absent: dict[int, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    aside: int | None = None

    def note(self, reasons: Mapping[int, str]) -> None:
        """Take note of why frames are not there, unless that is known."""
        for number, reason in reasons.items():
            if len(self.absent) < MAX_REASONS:
                self.absent.setdefault(number, reason)

    def leave(self, first: int | None) -> None:
        """Take note that slices from a frame on are left aside; None: none are."""
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
        told = "".join(
            f"\n  frame {number}: {reason}" for number, reason in sorted(self.absent.items())[:MAX_TOLD_FRAMES]
        )
        return text + (f"; not whole:{told}" if told else "")


Numbers = npt.NDArray[np.int64]

#: Frames of which nodes tell each other at once; where their numbers are in no pattern.
CHUNK_FRAMES = 1 << 20
SPARSE_FRAMES = 1 << 16
#: So many numbers for each that occurs are counted at most.
MAX_GAP = 4


def pick(frames: range | Numbers, at: Numbers) -> Numbers:
    """Return some of the frames, by where they are."""
    return frames.start + frames.step * at if isinstance(frames, range) else frames[at]


def totals(
    leaders: Communicator, sum_op: Any, held: HeldSlices, n_atoms: int, at_once: int = CHUNK_FRAMES
) -> Iterator[tuple[range | Numbers, npt.NDArray[Any]]]:
    """Yield how many atoms all nodes have of frames, some frames at a time (collective over the nodes' leaders).

    Numbers that do not occur cost nothing, however far those that do are apart.

    Parameters
    ----------
    leaders
        One rank a node.
    sum_op
        The operation of MPI that adds; unused if there is one node.
    held
        What this node has.
    n_atoms
        Atoms of a frame.
    at_once
        Frames at a time, roughly.

    Yields
    ------
    frames, atoms
        Frame numbers, ascending from one to the next, and an array that holds until the next: 0 where nobody has any.
    """
    # A frame may be there on every node, whole, after lost acknowledgements.
    kind = np.uint32 if n_atoms * leaders.size <= np.iinfo(np.uint32).max else np.int64
    own, both = np.empty(0, kind), np.empty(0, kind)
    end = 0
    while True:
        told = [one for one in leaders.allgather(held.until(end, at_once)) if one is not None]
        if not told:
            return
        first, end = min(one[0] for one in told), min(one[1] for one in told)
        frames: range | Numbers = range(first, end)
        if end - first > MAX_GAP * at_once:
            frames, end = _sparse(leaders, held, first, end, at_once)
        if len(own) < len(frames):
            own, both = np.empty(len(frames), kind), np.empty(len(frames), kind)
        some = own[: len(frames)]
        if isinstance(frames, range):
            some[:] = 0
            held.count(frames, some)
        else:
            some[:] = held.count_of(frames)
        if leaders.size > 1:
            leaders.Allreduce(some, both[: len(frames)], op=sum_op)
            some = both[: len(frames)]
        yield frames, some


def _sparse(leaders: Communicator, held: HeldSlices, first: int, end: int, at_once: int) -> tuple[range | Numbers, int]:
    """Return the frames from `first` on of which any node has slices, and the end of these (collective).

    Often they are some number apart; else nodes tell each other all numbers, of fewer frames.
    """
    told = [one for one in leaders.allgather(_pattern(held.numbers(first, end))) if one is not None]
    step = math.gcd(*(step for _, step in told), *(start - first for start, _ in told))
    if step and (end - first) // step <= MAX_GAP * at_once:
        return range(first, end, step), end
    few = max(1, at_once * SPARSE_FRAMES // CHUNK_FRAMES)
    end = min(one[1] for one in leaders.allgather(held.until(first, few)) if one is not None)
    return np.unique(np.concatenate(leaders.allgather(held.numbers(first, end)))), end


def _pattern(numbers: Numbers) -> tuple[int, int] | None:
    """Return the first number and how far they are apart, 0 for one alone; None if there is none."""
    if not len(numbers):
        return None
    gaps = np.diff(numbers)
    least = int(gaps.min()) if len(gaps) else 0
    if least and (gaps % least).any():
        least = int(np.gcd.reduce(gaps))
    return int(numbers[0]), least


#: Frames, and the rank that puts each together.
Plan = tuple[Numbers, npt.NDArray[np.int32]]
T = TypeVar("T")

#: Frames that it is told of at once who puts them together.
PLANNED_FRAMES = 1 << 16


class Finder:
    """Finds frames of one kind whose slices are all there.

    Parameters
    ----------
    world, team
        The ranks. The first of each node counts.
    target
        The dataset of whole frames.
    kind
        Of the frames.
    held
        What this rank knows of its node's slices, the first rank all; None if it is of none.
    done
        Is told of frames that are not whole.

    Attributes
    ----------
    own
        The slices that this rank reads.
    """

    def __init__(
        self, world: World, team: Team, target: Target, kind: SliceKind, held: HeldSlices | None, done: Assembled
    ) -> None:  # fmt: skip
        self._world, self._team, self._target, self._done = world, team, target, done
        self._n_atoms = kind.n_atoms
        self._held = held or HeldSlices()
        self.own = self._held if world.leaders is None or team.part is None else self._held.part(*team.part)

    def begin(self, followed: Followed) -> None:
        """Look at what is there, but for what is left aside as there are later launches (collective)."""
        self._held.leave_aside(followed)
        leads = self._world.leaders is not None
        on_every_rank(self._world.comm, lambda: self._held.refresh(atoms=leads))

    def plans(self, frames_at_once: int) -> Iterator[Plan]:
        """Yield frames whose slices are all there, by their number of atoms, so many of them a rank that works."""
        most = frames_at_once * self._team.workers * max(1, len(self._team.nodes))
        found = self._found(most) if self._world.leaders is not None else iter(())
        while True:
            numbers, ranks = self._from_leaders(partial(next, found, None)) or (np.empty(0, np.int64), None)
            if ranks is None:
                return
            for at in range(0, len(numbers), most):
                yield numbers[at : at + most], ranks[at : at + most]

    def _from_leaders(self, function: Callable[[], T]) -> T | None:
        """Call a function, which is collective over the first ranks of nodes, on these; all get what it returns."""
        leads = self._world.leaders is not None
        told: T | None = self._world.node.bcast(on_every_rank(self._world.comm, lambda: function() if leads else None))
        return told

    # --- On the first rank of each node -------------------------------------------------------------------------------

    @property
    def _leaders(self) -> Communicator:
        assert self._world.leaders is not None
        return self._world.leaders

    def _found(self, most: int) -> Iterator[Plan]:
        """Yield frames whose slices are all there, and who puts each together: of each `most`, evenly."""
        nodes = self._team.nodes
        for frames, atoms in totals(self._leaders, self._world.sum, self._held, self._n_atoms):
            whole = np.flatnonzero(atoms >= self._n_atoms)
            self._leave(frames, np.flatnonzero((atoms > 0) & (atoms < self._n_atoms)))
            at_once = max(1, PLANNED_FRAMES // most) * most
            for begin in range(0, len(whole), at_once):
                numbers = pick(frames, whole[begin : begin + at_once])
                shares = self._shares(numbers)
                node_of = [assign(shares[nodes, at : at + most]) for at in range(0, len(numbers), most)]
                ranks = [among_ranks(some, [self._team.ranks[node] for node in nodes]) for some in node_of]
                yield numbers, np.concatenate(ranks)

    def _shares(self, numbers: Numbers) -> Numbers:
        """Return how many atoms each node has of frames, `HELD` where it has the whole frame (collective)."""
        counts = self._held.count_of(numbers)
        counts[on_every_rank(self._leaders, partial(self._target.holds, numbers))] = HELD
        return np.stack(self._leaders.allgather(counts))

    def _native(self, frames: range | Numbers) -> npt.NDArray[np.bool_]:
        """Return which frames any node has natively (collective)."""
        mine = on_every_rank(self._leaders, partial(self._target.holds, frames))
        if self._leaders.size == 1 or not len(mine):
            return mine
        words: npt.NDArray[Any] = np.zeros(-(-len(mine) // 64), np.uint64)
        bits = np.packbits(mine, bitorder="little")
        words.view(np.uint8)[: len(bits)] = bits
        both = np.empty_like(words)
        self._leaders.Allreduce(words, both, op=self._world.bor)
        return np.unpackbits(both.view(np.uint8), bitorder="little")[: len(mine)].astype(np.bool_)

    def _leave(self, frames: range | Numbers, at: Numbers) -> None:
        """Take note of frames that are not whole; where the frame is there, what is left of its slices goes."""
        if not len(at):
            return
        begin, end = int(at[0]), int(at[-1]) + 1
        native = self._native(frames[begin:end])[at - begin]
        numbers = pick(frames, at)
        on_every_rank(self._leaders, partial(self._held.drop, numbers[native]))
        waiting = numbers[~native]
        self._done.waiting += len(waiting)
        some = [int(number) for number in waiting[:MAX_TOLD_FRAMES]]
        told = self._leaders.allgather((self._held.ranks, [self._held.having(number) for number in some]))
        ranks = {rank for known, _ in told for rank in known}
        for i, number in enumerate(some):
            missing = sorted(ranks - {rank for _, having in told for rank in having[i]})
            names = ", ".join(map(str, missing[:MAX_TOLD_FRAMES]))
            reason = f"no slice of rank{'s' * (len(missing) > 1)} {names}{', ...' * (len(missing) > MAX_TOLD_FRAMES)}"
            self._done.note({number: reason if missing else "some atoms are in no slice"})

    def leave_aside(self) -> None:
        """Tell of what was left aside; of frames that are there by now, drop it (collective)."""

        def leave() -> int | None:
            told = self._leaders.allgather(self._held.aside)
            numbers = np.unique(np.concatenate(told))
            there = self._native(numbers)
            on_every_rank(self._leaders, partial(self._held.drop, numbers[there]))
            return int(numbers[~there][0]) if not there.all() else None

        self._done.leave(self._from_leaders(leave))

    def forget_those_there(self) -> None:
        """Say nothing of frames that somebody else has put together meanwhile (collective)."""

        def forget() -> tuple[int, dict[int, str]]:
            done = self._done
            some = np.array(
                sorted(number for number, why in done.absent.items() if not why.startswith(OTHERS)), np.int64
            )
            for number in some[self._native(some)].tolist():
                done.absent.pop(number, None)
            return done.waiting, done.absent

        told = self._from_leaders(forget)
        assert told is not None
        self._done.waiting, self._done.absent = told
