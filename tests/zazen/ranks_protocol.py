"""The protocol on real ranks: any number of them, on as many nodes as HIMACH_NODES names."""

import os

import numpy as np
import pytest

from himach.errors import TrajectoryError
from himach.ranks import mpi
from himach.zazen import InMemory, assign

from .model import Store, apply_rules, check, take_all

RANK = int(os.environ.get("PMI_RANK", "0"))
NODES = os.environ["HIMACH_NODES"].split(",")
os.environ["HIMACH_NODE"] = NODES[RANK % len(NODES)]


@pytest.fixture(scope="module")
def world():
    return mpi.connect()


def stores_of(world, seed, n, natives, aliens):
    """Return the same random stores on every rank."""
    draw = np.random.default_rng(seed)
    stores = []
    for _ in world.nodes:
        native, alien = (set(np.flatnonzero(draw.random(n) < part).tolist()) for part in (natives, aliens))
        stores.append(Store(native, alien))
    return stores


def play(world, stores, frames, **options):
    mine = stores[world.node_index]
    cached = InMemory.from_numbers(mine.native, mine.alien) if world.node.rank == 0 else None
    share = assign(world, cached, frames, **options)
    taken = [step for task in take_all(share) for step in task.tolist()]
    share.close()
    shares = [[] for _ in world.nodes]
    for node, steps in world.comm.allgather((world.node_index, taken)):
        shares[node] += [frames[step] for step in steps]
    return share, shares


@pytest.mark.parametrize("frames", [range(0), range(7, 1_000), range(999, -1, -7)])
@pytest.mark.parametrize("natives, aliens", [(0, 0), (0.4, 0.5), (0, 0.3), (1, 1)])
@pytest.mark.parametrize("chunk_words", [4, 1 << 15])
def test_every_frame_once_and_by_the_rules(world, frames, natives, aliens, chunk_words):
    stores = stores_of(world, 1, 1_000, natives, aliens)
    ranks = [world.comm.allgather(world.name).count(name) for name in world.nodes]
    share, shares = play(world, stores, frames, chunk_words=chunk_words)
    assert len(set(map(str, world.comm.allgather(share.counts)))) == 1
    check(apply_rules(stores, ranks, frames, True), frames, shares, share.counts, ranks, True)


def test_without_origin_every_rank_raises(world):
    stores = stores_of(world, 2, 100, 0.2, 0)
    nowhere = sorted(set(range(100)) - set().union(*(store.native for store in stores)))
    with pytest.raises(TrajectoryError, match=f"{len(nowhere)} of 100 frames .* frame {nowhere[0]}, "):
        play(world, stores, range(100), origin=False)


def test_ranks_of_a_node_share_its_work(world):
    share, shares = play(world, [Store() for _ in world.nodes], range(4_000))
    part = 4_000 / world.comm.size
    here = world.node.size
    assert abs(len(shares[world.node_index]) - here * part) < len(world.nodes)
    assert share.size == len(shares[world.node_index])


def test_many_runs_in_one_process(world):
    for seed in range(40):  # more than an MPI library has places for reductions
        stores = stores_of(world, seed, 200, 0.2, 0.2)
        _, shares = play(world, stores, range(200))
        assert sorted(frame for part in shares for frame in part) == list(range(200))
