"""Assembling: slices become whole native frames, each on one node, in rounds of bounded memory.

In a round each rank reads slices of its node, sends them to the ranks that put these frames together, and those write
the frames; while one round is sent, the next is read and the ones before are written. A slice is dropped when its frame
is on disk. So this can be killed at any moment, and two may do it at once: what is written twice is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from himach.io.slices.held import Held, find_slices
from himach.io.slices.kinds import Kind, names_with_slices
from himach.io.store.store import Store
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import World
from himach.runner.assembling.finding import Finder
from himach.runner.assembling.launches import Launches
from himach.runner.assembling.outcome import Assembled
from himach.runner.assembling.rounds import Rounds
from himach.runner.assembling.target import Target
from himach.runner.assembling.team import Team

__all__ = ["Assembled", "assemble", "have_slices"]


def have_slices(world: World, store: Store | None, names: Sequence[str]) -> list[str]:
    """Return those of some names of which any node has slices, the same on every rank (collective)."""
    mine = on_every_rank(
        world.comm, lambda: names_with_slices(store, names) if world.leaders is not None and store is not None else []
    )
    return sorted({name for told in world.comm.allgather(mine) for name in told})


def assemble(world: World, store: Store | None, name: str) -> Assembled:
    """Put together all frames of a dataset of which every slice is there (collective).

    Parameters
    ----------
    world
        The ranks. Some of each node work (`Team`).
    store
        The node's; None where there is none.
    name
        Of the dataset.

    Raises
    ------
    StoreError
        On every rank: a store cannot be written to, or has no room. What was put together is kept, and so are the
        slices of what was not.
    """
    team = Team(world, has_store=store is not None)
    # The first rank of a node counts all slices; each that works reads those of some ranks of the simulation.
    leads = world.leaders is not None
    part = (0, 1) if leads else team.part

    def find() -> dict[Kind, Held]:
        return {} if store is None or part is None else find_slices(store, name, part, past=leads)

    found = on_every_rank(world.comm, find)
    mine = [kind for kind, held in found.items() if held.datasets]
    kinds: list[Kind] = sorted({kind for told in world.comm.allgather(mine) for kind in told})
    done = Assembled()
    launches = Launches(world, kinds, found)
    targets, finders = [], []
    try:
        for kind in kinds:
            targets.append(target := Target(store, name, kind))
            finders.append(finder := Finder(world, team, target, kind, found.get(kind), done))
            # Of all launches the frames must be of one simulation, before any gives way to another.
            target.agree_on_author(world.comm, [held for other, held in found.items() if kind.alike(other)])
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
