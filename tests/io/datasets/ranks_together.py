"""Ranks share what the first one has opened: once a node."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from support.io_samples import make

from himach.io.datasets import opening
from himach.io.datasets.opening import share_from_first
from himach.io.trajectories import xdr_index
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.xdr_index import load_indexes, read_index
from himach.ranks.mpi import connect
from himach.ranks.shared_arrays import SharedObject, share_object

TIMES = [0.5 * i for i in range(200)]


@pytest.fixture(params=["one node", "apart", "two nodes"])
def world(request, monkeypatch):
    first = connect()
    names = {"one node": "node", "apart": f"node{first.comm.rank}", "two nodes": f"node{first.comm.rank % 2}"}
    monkeypatch.setenv("HIMACH_NODE", names[request.param])
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


def check(world, origin, path: Path) -> None:
    """The index is that of one xdr_index."""
    kind = path.suffix[1:].upper()
    index, alone = origin.files[0].index, read_index(str(path), kind)
    assert index.facts == alone.facts
    for number in range(alone.n_frames):
        assert index.place(number) == alone.place(number)
        assert index.time(number) == alone.time(number)
    assert [frame.time for frame in origin.read(range(0, 200, 17))] == TIMES[::17]
    origin.close()


@pytest.mark.parametrize("name", ["a.xtc", "a.trr"])
def test_an_index_of_the_first_rank_comes_to_all_nodes(world, folder, name):
    path = written(world, folder / name)
    origin, _ = share_from_first(world, lambda: open_origin([path]))
    own = origin.files[0].index.columns.ctypes.data
    place = inode(own) if world.node.size > 1 and world.comm.rank > 0 else ""  # the first rank has its own
    places = [other for other in world.node.allgather(place) if other]
    assert len(set(places)) <= 1
    assert places or world.node.size == 1
    check(world, origin, path)


@pytest.mark.parametrize("damaged", [False, True])
def test_ranks_walk_over_a_long_file_but_for_a_damaged_one(world, folder, monkeypatch, damaged):
    path = written(world, folder / "a.xtc")
    for module in (opening, xdr_index):
        monkeypatch.setattr(module, "PART_BYTES", 1000)
    if damaged and world.comm.rank == 0:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + bytes(2000) + content[len(content) // 2 + 2000 :])
        (folder / "text.xtc").write_bytes(b"text" * 10_000)
    world.comm.barrier()
    walked = opening.walk_together(world, [path, folder / "text.xtc", folder / "none.xtc"], dict)
    assert list(walked) == ([] if damaged or world.comm.size == 1 or world.comm.rank else [str(path)])
    if not damaged:
        check(world, share_from_first(world, lambda: open_origin([path], indexes=walked))[0], path)


def test_an_index_that_is_removed_from_its_store_meanwhile(world, folder, monkeypatch):
    path = written(world, folder / "a.xtc")
    monkeypatch.setattr(xdr_index, "SMALL_BYTES", 0)

    def first() -> Origin:
        stored = folder / "x-index"
        stored.write_bytes(b"".join(xdr_index.pack_indexes({str(path): read_index(str(path), "XTC")})))
        known = load_indexes(str(stored))
        stored.unlink()
        origin = open_origin([path], indexes=known)
        assert origin.files[0].index is known[str(path)]
        return origin

    check(world, share_from_first(world, first)[0], path)


def test_a_topology_is_in_the_memory_of_a_node_once_and_writes_are_of_a_rank(world):
    rank, size = world.comm.rank, 1 << 16
    sent = SharedObject({"ids": np.arange(size), "names": ["A", "B"]}) if rank == 0 else None
    shared = share_object(world, sent)
    mine, second = shared.copy(), shared.copy()
    mine["ids"][:] = -rank
    mine["names"].append("C")
    world.comm.barrier()
    for copied in (second, shared.copy()):
        np.testing.assert_array_equal(copied["ids"], np.arange(size))
        assert copied["names"] == ["A", "B"]
    if world.node.size > 1:
        assert len(set(world.node.allgather(inode(second["ids"].ctypes.data)))) == 1
    world.comm.barrier()


def inode(address: int) -> str:
    """Return the inode of the file that is mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(word, 16) for word in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[4]
    raise AssertionError(f"nothing is mapped at {address:x}")
