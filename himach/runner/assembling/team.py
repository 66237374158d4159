"""Which ranks of each node assemble: `Team`."""

from __future__ import annotations

from himach.parallel.communicator import World

__all__ = ["Team"]

#: Ranks of a node that assemble, at most: each holds some rounds in memory, and a disk has enough of a few.
WORKERS = 4


class Team:
    """The ranks that read slices and put frames together (collective).

    Attributes
    ----------
    ranks
        Those of each node, in the order of `World.nodes`.
    part
        Of this rank: which part of its node's slices it reads, of how many parts; None if it does not work.
    """

    def __init__(self, world: World) -> None:
        workers = min(WORKERS, world.node.size)
        self.part = (world.node.rank, workers) if world.node.rank < workers else None
        told = world.comm.allgather((world.node_index, self.part is not None))
        self.ranks = [
            [rank for rank, (of, works) in enumerate(told) if works and of == node] for node in range(len(world.nodes))
        ]

    @property
    def workers(self) -> int:
        """Ranks of a node that work, where they are fewest."""
        return min(len(ranks) for ranks in self.ranks)
