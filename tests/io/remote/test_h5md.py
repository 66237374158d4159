"""H5MD by URL: the frames of the local file, and no more of its bytes than they take."""

from __future__ import annotations

import gc
import pickle

import pytest
from support import needs
from support.cache_data import Emit

import himach
from himach.errors import TrajectoryError, UsageError
from himach.io.trajectory.origin import open_origin

from ..trajectory.foreign import minimal_topology, read_frames
from ..trajectory.h5md.trees import theirs, tree, write

h5py = needs.module("h5py")


@pytest.mark.parametrize("how", [{}, {"compression": "gzip"}, {"chunks": None}], ids=["chunks", "gzip", "plain"])
def test_frames_are_those_of_the_local_file(web, how):
    path = write(web.folder / "a.h5md", tree(), **how)
    expected = theirs(path)
    origin = open_origin([web.url("a.h5md")])
    assert read_frames(origin) == expected
    assert read_frames(origin, [7, 2]) == [expected[7], expected[2]]
    assert origin.fingerprint == open_origin([path]).fingerprint


def test_no_more_is_asked_for_than_frames_take(web):
    content = tree(40, 50_000)
    path = write(web.folder / "a.h5md", content, 1, 50_000)
    expected = theirs(path)
    origin = open_origin([web.url("a.h5md")])
    opened = web.sent["a.h5md"]
    assert opened < path.stat().st_size / 5
    some = range(10, 20)
    there = pickle.loads(pickle.dumps(origin))
    assert read_frames(there, some) == expected[10:20]
    assert web.sent["a.h5md"] - opened < path.stat().st_size / 2


def test_a_server_that_fails_is_named(web):
    write(web.folder / "a.h5md", tree(40, 5000), 1, 5000)
    origin = open_origin([web.url("a.h5md")])
    web.fault = lambda number, place: "404"
    with pytest.raises(TrajectoryError, match=r"frame 30 .*there is no such file \(the server says 404\)"):
        read_frames(origin, [30])


def test_runs(web, tmp_path):
    path = write(web.folder / "a.h5md", tree())
    topology = minimal_topology(tmp_path, 7)

    def table(trajectory, cache):
        outcome = himach.run(Emit(), trajectory, topology, cache=cache, progress=False).outcome
        return {name: values.tolist() for name, values in outcome["frames"].items()}

    place = tmp_path / "store"
    expected = table(path, "off")
    assert [table(web.url("a.h5md"), cache) for cache in ("off", place, place)] == [expected] * 3


def test_objects_of_h5py_that_another_thread_would_collect_hang_no_read(web, tmp_path):
    """The thread that answers collects while h5py, which has its lock, waits for the answer."""
    path = write(web.folder / "a.h5md", tree(40, 5000), 1, 5000)

    def collect(number, place):
        loop = groups[-1:]
        loop.append(loop)
        del loop, groups[-1:]
        list(map(list, [()] * 100_000))  # so many containers start a collection
        return ""

    expected = theirs(path)
    groups = [h5py.File(path, "r")["particles"] for _ in range(100)]
    web.fault = collect
    assert read_frames(open_origin([web.url("a.h5md")])) == expected
    assert len(groups) < 100 and gc.isenabled()
    gc.collect()  # while HDF5 is there


def test_what_goes_wrong_is_told(web):
    path = write(web.folder / "a.h5md", tree(40, 5000), 1, 5000)
    origin = open_origin([web.url("a.h5md")])
    write(path, tree(41, 5000), 1, 5000)
    with pytest.raises((TrajectoryError, UsageError), match="has changed since it was opened"):
        read_frames(origin)
    (web.folder / "b.h5md").write_bytes(b"no HDF5 at all" * 100)
    with pytest.raises(TrajectoryError, match=r"b\.h5md cannot be read as H5MD: .*signature"):
        open_origin([web.url("b.h5md")])
