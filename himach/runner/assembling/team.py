"""Which ranks of each node assemble: `Team`."""

from __future__ import annotations

from himach.parallel.communicator import World

__all__ = ["Team"]

#: Ranks of a node that assemble, at most: each holds some rounds in memory, and a disk has enough of a few.
WORKERS = 4


class Team:
    """The ranks that read slices and put frames together (collective).

    Parameters
    ----------
    world
        The ranks.
    has_store
        Whether this rank's node has a store; else none of its ranks works.

    Attributes
    ----------
    ranks
        Those of each node, in the order of `World.nodes`.
    part
        Of this rank: which part of its node's slices it reads, of how many parts; None if it does not work.
    """

    def __init__(self, world: World, *, has_store: bool) -> None:
        workers = min(WORKERS, world.node.size)
        self.part = (world.node.rank, workers) if has_store and world.node.rank < workers else None
        told = world.comm.allgather((world.node_index, self.part is not None))
        self.ranks = [
            [rank for rank, (of, works) in enumerate(told) if works and of == node] for node in range(len(world.nodes))
        ]

    @property
    def nodes(self) -> list[int]:
        """The nodes whose ranks work."""
        return [node for node, ranks in enumerate(self.ranks) if ranks]

    @property
    def workers(self) -> int:
        """Ranks of a node that works, where they are fewest."""
        return min((len(ranks) for ranks in self.ranks if ranks), default=1)
