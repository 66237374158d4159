"""Ranks walk over a trajectory together, and share what they found: as one walk, once a node."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.cache_data import only_dataset
from support.io_samples import make

import himach
from himach.io.dataset.kept_index import indexes_in
from himach.io.trajectory.index.walk import read_index
from himach.io.trajectory.index.xdr_index import Stored
from himach.io.trajectory.origin import open_origin
from himach.opening import parallel_scan as together
from himach.opening import shared_index as once
from himach.opening.parallel_scan import walk_together
from himach.opening.shared_index import free, leave_behind, settle
from himach.parallel.mpi import connect

TIMES = [0.5 * i for i in range(200)]


@pytest.fixture(params=["one node", "apart", "two nodes"])
def world(request, monkeypatch):
    first = connect()
    names = {"one node": "node", "apart": f"node{first.comm.rank}", "two nodes": f"node{first.comm.rank % 2}"}
    monkeypatch.setenv("HIMACH_NODE", names[request.param])
    monkeypatch.setattr(together, "PART_BYTES", 1000)
    monkeypatch.setattr(together, "ROUND_BYTES", 100)
    monkeypatch.setattr(once, "SMALL_INDEX_BYTES", 0)
    return connect()


@pytest.fixture
def folder(world):
    with tempfile.TemporaryDirectory() as name:
        yield Path(world.comm.bcast(name))
        world.comm.barrier()


def written(world, path: Path) -> Path:
    if world.comm.rank == 0:
        make(path, TIMES, velocities=path.suffix == ".trr")
    world.comm.barrier()
    return path


def opened(world, path: Path, walked, own=dict):
    """Open an origin on the first rank, and have it on all."""
    origin, left = None, {}
    if world.comm.rank == 0:
        origin = open_origin([path], known={**own(), **walked})
        left.update(leave_behind(origin, walked))
    origin = world.comm.bcast(origin)
    return origin, settle(world, origin, walked, own, left)


def check(world, origin, path: Path) -> None:
    """The index is that of one walk."""
    kind = path.suffix[1:].upper()
    index, alone = origin.files()[0][0].index, read_index(str(path), kind)
    assert index.facts == alone.facts
    for number in range(alone.n_frames):
        assert index.place(number) == alone.place(number)
        assert index.time(number) == alone.time(number)
    assert [frame.time for frame in origin.read(range(0, 200, 17))] == TIMES[::17]
    origin.close()


@pytest.mark.parametrize("name", ["a.xtc", "a.trr"])
def test_all_ranks_walk_and_a_node_holds_it_once(world, folder, name):
    path = written(world, folder / name)
    walked, held = walk_together(world, [path], dict)
    assert len(walked) == len(held) == (world.comm.size > 1)
    for index in walked.values():
        assert len(index.spans) == min(world.comm.size, path.stat().st_size // 1000)
    origin, more = opened(world, path, walked)
    assert not more
    if world.node.size > 1:  # what one rank writes there, the others see
        index = origin.files()[0][0].index
        last = index.content[-1]
        world.node.barrier()
        if world.node.rank == 0:
            index.content[-1] ^= 1
        world.node.barrier()
        assert index.content[-1] == last ^ 1
        world.node.barrier()
        if world.node.rank == 0:
            index.content[-1] ^= 1
        world.node.barrier()
    check(world, origin, path)
    free(origin, held)


def test_an_index_of_the_first_rank_comes_to_all_nodes(world, folder):
    path = written(world, folder / "a.xtc")
    origin, held = opened(world, path, {})
    assert len(held) == (world.comm.size > 1)
    check(world, origin, path)
    free(origin, held)


def test_an_index_that_a_store_has_is_read_from_there(world, folder):
    path = written(world, folder / "a.xtc")
    index = read_index(str(path), "XTC")
    stored = folder / world.name
    if world.node.rank == 0:
        stored.write_bytes(index.content.tobytes())
    kept = index.with_content(Stored(str(stored), 0, len(index.content)))
    has = world.node_index != 1  # one node's store has nothing
    origin, held = opened(world, path, {}, lambda: {str(path): kept} if has else {})
    if world.comm.size > 1:
        mine = origin.files()[0][0].index.content
        assert isinstance(mine, Stored) == has
        assert not has or mine.path == str(stored)
        assert len(held) == (not has)
    check(world, origin, path)
    free(origin, held)


def test_an_index_of_something_else_is_not_taken(world, folder):
    path = written(world, folder / "a.xtc")
    index = read_index(str(path), "XTC")
    stored = folder / world.name
    stored.write_bytes(bytes(len(index.content)))
    other = replace(index, changed=index.changed - 1, content=Stored(str(stored), 0, len(index.content)))
    origin = world.comm.bcast(open_origin([path]) if world.comm.rank == 0 else None)
    left = leave_behind(origin, {})  # on every rank, so that it is all the same
    held = settle(world, origin, {}, lambda: {str(path): other}, left)
    check(world, origin, path)
    free(origin, held)


def test_what_is_damaged_or_short_is_left_to_the_first_rank(world, folder):
    path = written(world, folder / "a.xtc")
    world.comm.barrier()
    if world.comm.rank == 0:
        content = bytearray(path.read_bytes())
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
        path.write_bytes(content)
        (folder / "short.xtc").write_bytes(bytes(content[:999]))
        (folder / "text.xtc").write_bytes(b"text" * 10_000)
    world.comm.barrier()
    names = ["a.xtc", "short.xtc", "text.xtc", "none.xtc"]
    assert walk_together(world, [folder / name for name in names], dict)[0].keys() <= {str(path)}


class Sum(himach.Analysis):
    """Add up x of the first atom, by frame."""

    def map(self, frame):
        yield frame.number, float(frame.positions[0, 0])

    def reduce(self, key, series):
        return float(series.times[0])

    def finish(self, results):
        return {"found": {"time": list(results.values())}}


def test_runs_are_as_alone(world, folder):
    path = written(world, folder / "a.xtc")
    topology = folder / "one.gro"
    if world.comm.rank == 0:
        import MDAnalysis as mda

        universe = mda.Universe.empty(40, trajectory=True)
        universe.add_TopologyAttr("name", ["C"] * 40)
        universe.add_TopologyAttr("resname", ["X"])
        universe.add_TopologyAttr("resid", [1])
        universe.dimensions = [50, 50, 50, 90, 90, 90]
        universe.atoms.write(str(topology))
    world.comm.barrier()
    outcomes, kept = [], None
    for turn in range(3):  # walked over, kept, and grown
        if turn == 2 and world.comm.rank == 0:
            make(path, [*TIMES, 100.0, 100.5])
        world.comm.barrier()
        result = himach.run(Sum(), path, topology, cache=str(folder / "store-{node}"), progress=False)
        if world.comm.rank == 0:
            outcomes.append(result.outcome["found"]["time"])
        if world.node.rank == 0:
            dataset = only_dataset(folder / f"store-{world.name}", path)
            kept = indexes_in((dataset.path / "x-index").read_bytes())[str(path)]
            alone = read_index(str(path), "XTC")
            assert kept.facts == alone.facts
            assert [kept.place(i) for i in range(kept.n_frames)] == [alone.place(i) for i in range(alone.n_frames)]
        world.comm.barrier()
    if world.comm.rank == 0:
        assert outcomes == [TIMES, TIMES, [*TIMES, 100.0, 100.5]]
