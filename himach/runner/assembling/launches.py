"""Launches of a simulation: where a later one has begun, what earlier ones pushed from there on is left aside.

No frame is made of slices of two launches in any case. `Launches` tells which slices of each are meant, and has that
known when those of the later one have become frames (`himach.io.slices.followed`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from himach.io.slices.followed import Followed, Since, merged
from himach.io.slices.held import Held
from himach.io.slices.kinds import Kind
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import Communicator, World

__all__ = ["Launches"]


@dataclass(frozen=True)
class Seen:
    """What a node has of launches.

    Attributes
    ----------
    began
        Of each of which it has slices: the second in which it began there, and its first frame.
    known
        By which launches each is known to be followed.
    """

    began: Mapping[Kind, tuple[int, int]]
    known: Mapping[Kind, Followed]


class Launches:
    """The launches that have pushed slices, and their order (collective).

    One is later than another if it began in a later second on every node that has slices of both, and there is such a
    node: so clocks of two nodes are never compared. Else their order is not known, and neither is left aside. What is
    found is remembered by every node that has slices of the earlier one.

    Parameters
    ----------
    world
        The ranks. The first of each node knows all its slices.
    kinds
        All that any node has.
    found
        The slices of this node, and what is known of those that were there.
    """

    def __init__(self, world: World, kinds: Sequence[Kind], found: Mapping[Kind, Held]) -> None:
        def told() -> dict[Kind, Followed]:
            return {} if world.leaders is None else _agree(world.leaders, kinds, found)

        self._followed: dict[Kind, Followed] = world.node.bcast(on_every_rank(world.comm, told))

    def after(self, kind: Kind) -> Followed:
        """Return which launches are later, and since when, on this node."""
        return self._followed.get(kind, {})


def _agree(leaders: Communicator, kinds: Sequence[Kind], found: Mapping[Kind, Held]) -> dict[Kind, Followed]:
    """Return by which launches each is followed, as all nodes know it by then (collective over the first ranks)."""

    def mine() -> Seen:
        for held in found.values():
            held.refresh()
        began = {kind: one for kind, held in found.items() if (one := held.began()) is not None}
        # What is known comes second: whoever drops slices of a later launch has had it known before.
        return Seen(began, {kind: held.known for kind, held in found.items()})

    own = on_every_rank(leaders, mine)
    nodes = leaders.allgather(own)
    now = int(time.time()) + 1
    followed: dict[Kind, Followed] = {}
    for kind in kinds:
        later = [other for other in kinds if kind.alike(other) and _is_later(nodes, other, kind)]
        firsts = [(other.launch, seen.began[other][1]) for seen in nodes for other in later if other in seen.began]
        firsts += [(launch, one.frame) for seen in nodes for launch, one in seen.known.get(kind, {}).items()]
        seconds = {other.launch: own.began[other][0] for other in later if other in own.began}
        seconds |= {launch: one.second for launch, one in own.known.get(kind, {}).items()}
        followed[kind] = merged(*({launch: Since(first, seconds.get(launch, now))} for launch, first in firsts))

    def remember() -> None:
        for kind, held in found.items():
            held.remember(followed.get(kind, {}))

    on_every_rank(leaders, remember)
    return followed


def _is_later(nodes: Sequence[Seen], one: Kind, other: Kind) -> bool:
    both = [(seen.began[one][0], seen.began[other][0]) for seen in nodes if one in seen.began and other in seen.began]
    return bool(both) and all(mine > theirs for mine, theirs in both)
