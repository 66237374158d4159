"""Which frames are whole, and who puts each together: `Finder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from himach.io.slices.followed import Followed
from himach.io.slices.held import Held
from himach.io.slices.kinds import Kind
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import Communicator, World
from himach.runner.assembling.outcome import TOLD, Assembled
from himach.runner.assembling.plan import HELD, among_ranks, assign
from himach.runner.assembling.target import Target
from himach.runner.assembling.team import Team
from himach.runner.assembling.totals import pick, totals

__all__ = ["OTHERS", "Finder"]

Numbers = npt.NDArray[np.int64]
#: Frames, and the rank that puts each together.
Plan = tuple[Numbers, npt.NDArray[np.int32]]
T = TypeVar("T")

#: Why of a frame that is there nevertheless something is told.
OTHERS = "its slices are not those of the frame that is there"

#: Frames that it is told of at once who puts them together.
PLANNED = 1 << 16


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
        self, world: World, team: Team, target: Target, kind: Kind, held: Held | None, done: Assembled
    ) -> None:  # fmt: skip
        self._world, self._team, self._target, self._done = world, team, target, done
        self._n_atoms = kind.n_atoms
        self._held = held or Held()
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
            at_once = max(1, PLANNED // most) * most
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
        some = [int(number) for number in waiting[:TOLD]]
        told = self._leaders.allgather((self._held.ranks, [self._held.having(number) for number in some]))
        ranks = {rank for known, _ in told for rank in known}
        for i, number in enumerate(some):
            missing = sorted(ranks - {rank for _, having in told for rank in having[i]})
            names = ", ".join(map(str, missing[:TOLD]))
            reason = f"no slice of rank{'s' * (len(missing) > 1)} {names}{', ...' * (len(missing) > TOLD)}"
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
