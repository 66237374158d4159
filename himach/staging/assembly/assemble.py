"""Assembling: slices become whole native frames, each on one node, in rounds of bounded memory.

In a round each rank reads slices of its node, sends them to the ranks that put these frames together, and those write
the frames; while one round is sent, the next is read and the ones before are written. A slice is dropped when its frame
is on disk. So this can be killed at any moment, and two may do it at once: what is written twice is the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from himach.io.push.held_slices import Followed, HeldSlices, Since, SliceKind, find_slices, merge, names_with_slices
from himach.io.store.store import Store
from himach.parallel.collective import run_collectively
from himach.parallel.communicator import Communicator, World
from himach.staging.assembly.complete_frames import Assembled, Finder
from himach.staging.assembly.rounds import Rounds
from himach.staging.assembly.target import Target
from himach.staging.assembly.workers import Team

__all__ = ["Assembled", "Launches", "assemble", "have_slices"]


def have_slices(world: World, store: Store | None, names: Sequence[str]) -> list[str]:
    """Return those of some names of which any node has slices, the same on every rank (collective)."""
    mine = run_collectively(
        world.comm, lambda: names_with_slices(store, names) if world.leaders is not None and store is not None else []
    )
    return sorted({name for told in world.comm.allgather(mine) for name in told})


def assemble(world: World, store: Store | None, name: str) -> Assembled:
    """Put together all frames of a dataset of which every slice is there (collective)."""
    team = Team(world, has_store=store is not None)
    # The first rank of a node counts all slices; each that works reads those of some ranks of the simulation.
    leads = world.leaders is not None
    part = (0, 1) if leads else team.part

    def find() -> dict[SliceKind, HeldSlices]:
        return {} if store is None or part is None else find_slices(store, name, part, past=leads)

    found = run_collectively(world.comm, find)
    mine = [kind for kind, held in found.items() if held.datasets]
    kinds: list[SliceKind] = sorted({kind for told in world.comm.allgather(mine) for kind in told})
    done = Assembled()
    launches = Launches(world, kinds, found)
    targets, finders = [], []
    try:
        for kind in kinds:
            targets.append(target := Target(store, name, kind))
            finders.append(finder := Finder(world, team, target, kind, found.get(kind), done))
            # Of all launches the frames must be of one simulation, before any gives way to another.
            target.agree_on_author(world.comm, [held for other, held in found.items() if kind.is_same_dataset(other)])
            finder.begin(launches.after(kind))
            Rounds(world, target, kind, finder.own, done).go(finder)
            finder.forget_those_there()
        for finder in finders:
            finder.leave_aside()
    finally:
        for target in targets:
            target.close()
    counts = world.comm.allgather((world.name, done.nodes.get(world.name, 0)))
    done.nodes = {node: count for node in world.nodes if (count := sum(n for name, n in counts if name == node))}
    return done


@dataclass(frozen=True)
class Seen:
    """What a node has of launches."""

    began: Mapping[SliceKind, tuple[int, int]]
    known: Mapping[SliceKind, Followed]  # by which launches each is known to be followed


class Launches:
    """The launches that have pushed slices, and their order (collective).

    One is later than another if it began in a later second on every node that has slices of both, and there is such a
    node: so clocks of two nodes are never compared. Else their order is not known, and neither is left aside. What is
    found is remembered by every node that has slices of the earlier one.
    """

    def __init__(self, world: World, kinds: Sequence[SliceKind], found: Mapping[SliceKind, HeldSlices]) -> None:
        def told() -> dict[SliceKind, Followed]:
            return {} if world.leaders is None else _agree(world.leaders, kinds, found)

        self._followed: dict[SliceKind, Followed] = world.node.bcast(run_collectively(world.comm, told))

    def after(self, kind: SliceKind) -> Followed:
        """Return which launches are later, and since when, on this node."""
        return self._followed.get(kind, {})


def _agree(
    leaders: Communicator, kinds: Sequence[SliceKind], found: Mapping[SliceKind, HeldSlices]
) -> dict[SliceKind, Followed]:
    """Return by which launches each is followed, as all nodes know it by then (collective over the first ranks)."""

    def mine() -> Seen:
        for held in found.values():
            held.refresh()
        began = {kind: one for kind, held in found.items() if (one := held.first_write()) is not None}
        # What is known comes second: whoever drops slices of a later launch has had it known before.
        return Seen(began, {kind: held.later_launches for kind, held in found.items()})

    own = run_collectively(leaders, mine)
    nodes = leaders.allgather(own)
    now = max([int(time.time()), *(held.last_second for held in found.values())]) + 1
    followed: dict[SliceKind, Followed] = {}
    for kind in kinds:
        later = [other for other in kinds if kind.is_same_dataset(other) and _is_later(nodes, other, kind)]
        firsts = [(other.launch, seen.began[other][1]) for seen in nodes for other in later if other in seen.began]
        firsts += [(launch, one.frame) for seen in nodes for launch, one in seen.known.get(kind, {}).items()]
        seconds = {other.launch: own.began[other][0] for other in later if other in own.began}
        seconds |= {launch: one.second for launch, one in own.known.get(kind, {}).items()}
        followed[kind] = merge(*({launch: Since(first, seconds.get(launch, now))} for launch, first in firsts))

    def remember() -> None:
        for kind, held in found.items():
            held.remember(followed.get(kind, {}))

    run_collectively(leaders, remember)
    return followed


def _is_later(nodes: Sequence[Seen], one: SliceKind, other: SliceKind) -> bool:
    both = [(seen.began[one][0], seen.began[other][0]) for seen in nodes if one in seen.began and other in seen.began]
    return bool(both) and all(mine > theirs for mine, theirs in both)
