"""Assembling on real ranks: any number of them, on as many nodes as HIMACH_NODES names."""

from __future__ import annotations

import os

import numpy as np

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
NODES = os.environ["HIMACH_NODES"].split(",")
os.environ["HIMACH_NODE"] = NODES[RANK % len(NODES)]

import himach  # noqa: E402
from himach.io.store.quota import open_store  # noqa: E402
from himach.io.store.store import Store  # noqa: E402
from himach.ranks.mpi import connect  # noqa: E402
from himach.staging.assembly import rounds  # noqa: E402
from himach.staging.assembly.assemble import assemble  # noqa: E402

N_ATOMS, N_FRAMES = 1000, 60


def test_slices_of_all_ranks_become_frames(monkeypatch):
    monkeypatch.setenv("HIMACH_CACHE", os.environ["STORES"])
    monkeypatch.setattr(rounds, "ROUND_BYTES", 5 * 12 * N_ATOMS)  # several rounds
    world = connect()
    rng = np.random.default_rng(1)
    positions = rng.uniform(0, 50, (N_FRAMES, N_ATOMS, 3)).astype(np.float32)
    owner = rng.integers(0, SIZE, N_ATOMS)
    with himach.Writer("run7", N_ATOMS, rank=RANK) as writer:
        for number in range(N_FRAMES):
            moves = rng.random(N_ATOMS) < 0.02
            owner[moves] = rng.integers(0, SIZE, moves.sum())
            ids = np.flatnonzero(owner == RANK)
            if number == 17 and RANK == 1:
                continue
            if number == 19 and RANK == 1:
                ids = np.append(ids, np.flatnonzero(owner == 0)[:1])
            np.random.default_rng(number).shuffle(ids)
            writer.push_slice(number, ids, positions[number][ids], time=number, velocities=-positions[number][ids])
    world.comm.barrier()
    store = open_store()
    done = assemble(world, store, "run7")
    assert done.frames == N_FRAMES - 2 and done.waiting == 1
    assert done.absent[17] == "no slice of rank 1"
    assert "is in the slices of rank 0 and rank 1" in done.absent[19]
    assert set(done.absent) == {17, 19}
    dataset = store.dataset("run7", b"", create=False)
    mine = list(dataset.native)
    for frame in dataset.read(mine):
        assert np.array_equal(frame.positions, positions[frame.number])
        assert np.array_equal(frame.velocities, -positions[frame.number])
    by_node = dict(zip(world.comm.allgather(world.name), world.comm.allgather(mine), strict=True))
    everything = sorted(number for numbers in by_node.values() for number in numbers)
    assert everything == sorted({*range(N_FRAMES)} - {17, 19})
    assert max(map(len, by_node.values())) - min(map(len, by_node.values())) <= N_FRAMES // len(NODES) // 4 + 1


def test_a_node_without_a_store_gets_no_frames(monkeypatch, tmp_path_factory):
    """Where there are several nodes, the last one has none."""
    world = connect()
    place = tmp_path_factory.mktemp("stores") / world.name
    has_store = world.name != NODES[-1] or len(world.nodes) == 1
    if has_store:
        with himach.Writer("run8", 3, cache=place, rank=RANK) as writer:
            mine = RANK == 0
            for number in range(20 if mine else 0):
                writer.push_slice(number * 10**13, [0, 1, 2], np.ones((3, 3), np.float32), time=number)
    world.comm.barrier()
    place = world.node.bcast(place)
    done = assemble(world, Store(place) if has_store else None, "run8")
    assert (done.frames, done.waiting, done.absent) == (20, 0, {})
    assert NODES[-1] not in done.nodes or len(world.nodes) == 1
