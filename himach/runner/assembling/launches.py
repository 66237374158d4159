"""Launches of a simulation: where two have pushed a frame, the later one's is meant. `leave_to_later()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from himach.io.slices.held import Held, Kind
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import Communicator, World

__all__ = ["Beginnings", "beginnings", "leave_to_later"]

#: Of each launch that has slices: when it began, and its first frame.
Beginnings = dict[Kind, tuple[int, int]]


def beginnings(leaders: Communicator, kinds: Sequence[Kind], found: Mapping[Kind, Held]) -> Beginnings:
    """Return of which launches there are slices on any node (collective over the first ranks of nodes)."""

    def mine() -> Beginnings:
        for held in found.values():
            held.refresh()
        began = {kind: held.began() for kind, held in found.items()}
        return {kind: one for kind, one in began.items() if one is not None}

    told = leaders.allgather(on_every_rank(leaders, mine))
    had = {kind: [one[kind] for one in told if kind in one] for kind in kinds}
    return {
        kind: (min(when for when, _ in some), min(first for _, first in some)) for kind, some in had.items() if some
    }


def leave_to_later(world: World, launches: Beginnings, kind: Kind, held: Held | None) -> int | None:
    """Drop slices of a launch that a later one has pushed anew; return from which frame on, if any (collective).

    Those from the later one's first frame on go: so no frame is of two launches, and frames follow one another as the
    simulation went on.
    """

    def leave() -> int | None:
        if world.leaders is None or kind not in launches:
            return None
        began = launches[kind][0]
        later = [first for other, (when, first) in launches.items() if kind.alike(other) and when > began]
        if not later:
            return None
        dropped = on_every_rank(world.leaders, partial((held or Held()).drop_from, min(later)))
        return min(later) if any(world.leaders.allgather(dropped)) else None

    first: int | None = world.node.bcast(on_every_rank(world.comm, leave))
    return first
