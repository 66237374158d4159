"""Launches of a simulation: where a later one has begun, what earlier ones pushed from there on is left aside.

No frame is made of slices of two launches in any case. `Launches` tells which frames of each are meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from himach.io.slices.held import Held, Kind
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import World

__all__ = ["Launches"]

#: Of each launch of which a node has slices: the second in which it began there, and its first frame.
Beginnings = dict[Kind, tuple[int, int]]


class Launches:
    """The launches that have pushed slices, and their order (collective).

    One is later than another if it began in a later second on every node that has slices of both, and there is such a
    node: so clocks of two nodes are never compared. Else their order is not known, and neither is left aside.

    Parameters
    ----------
    world
        The ranks. The first of each node knows all its slices.
    kinds
        All that any node has.
    found
        The slices of this node.
    """

    def __init__(self, world: World, kinds: Sequence[Kind], found: Mapping[Kind, Held]) -> None:
        def told() -> list[Beginnings]:
            return [] if world.leaders is None else world.leaders.allgather(on_every_rank(world.leaders, mine))

        def mine() -> Beginnings:
            for held in found.values():
                held.refresh()
            began = {kind: held.began() for kind, held in found.items()}
            return {kind: one for kind, one in began.items() if one is not None}

        self._kinds = kinds
        self._nodes: list[Beginnings] = world.node.bcast(on_every_rank(world.comm, told))

    def end_of(self, kind: Kind) -> int | None:
        """Return from which frame on slices of a launch are left aside; None: none are."""
        later = [other for other in self._kinds if kind.alike(other) and self._is_later(other, kind)]
        firsts = [began[other][1] for began in self._nodes for other in later if other in began]
        return min(firsts, default=None)

    def _is_later(self, one: Kind, other: Kind) -> bool:
        both = [(began[one][0], began[other][0]) for began in self._nodes if one in began and other in began]
        return bool(both) and all(mine > theirs for mine, theirs in both)
