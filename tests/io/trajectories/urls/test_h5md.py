"""H5MD and Zarr by URL: the frames of the local files, and no more of their bytes than they take."""

import gc
import json
import os
import pickle
import shutil

import pytest
from support import needs

from himach.errors import TrajectoryError, UsageError
from himach.io.trajectories.origin import open_origin
from himach.io.trajectories.urls import byte_file
from himach.io.trajectories.urls.byte_file import ask_again

from ...frame_sources import OriginTests, write_files
from ..h5md.trees import BASE, tree, write
from ..trajectory_formats import read_frames


class TestFilesByUrl(OriginTests):
    tolerance = 1e-4

    @pytest.fixture
    def source(self, web):
        return open_origin([web.url(path.name) for path in write_files(web.folder)])


def put(path, content=None, *sizes, **how):
    """Write a file, or a directory whose metadata tell its arrays."""
    module = needs.module("h5py" if path.suffix == ".h5md" else "zarr")
    write(path, content or tree(), *sizes, **how)
    if path.suffix != ".h5md":
        module.consolidate_metadata(str(path))
    return path


@pytest.mark.nightly(but=5)
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.h5md", {}),
        ("a.h5md", {"compression": "gzip"}),
        ("a.h5md", {"chunks": None}),
        ("a.2.zarrmd", {}),
        ("a.3.zarr", {}),
        ("a.3.zarr", {"shards": (10, 7, 3)}),
    ],
)
def test_frames_are_those_of_the_local_file(web, name, how):
    local = open_origin([put(web.folder / name, **how)])
    expected = read_frames(local)
    origin = open_origin([web.url(name)])
    assert (origin.n_frames, origin.n_atoms, origin.kinds) == (12, 7, local.kinds)
    assert read_frames(origin) == expected
    assert read_frames(origin, [7, 2]) == [expected[7], expected[2]]
    if name == "a.h5md":
        assert origin.fingerprint == local.fingerprint
    else:
        assert read_frames(open_origin([web.url(f"{name}/")])) == expected


def test_no_more_is_asked_for_than_frames_take(web):
    content = tree(40, 50_000)
    path = put(web.folder / "a.h5md", content, 1, 50_000)
    expected = read_frames(open_origin([path]))
    origin = open_origin([web.url("a.h5md")])
    opened = web.sent["a.h5md"]
    assert opened < path.stat().st_size / 5
    some = range(10, 20)
    there = pickle.loads(pickle.dumps(origin))
    assert read_frames(there, some) == expected[10:20]
    assert web.sent["a.h5md"] - opened < path.stat().st_size / 2


def test_objects_of_h5py_that_another_thread_would_collect_hang_no_read(web, tmp_path):
    """The thread that answers collects while h5py, which has its lock, waits for the answer."""
    path = put(web.folder / "a.h5md", tree(40, 5000), 1, 5000)

    def collect(number, place):
        loop = groups[-1:]
        loop.append(loop)
        del loop, groups[-1:]
        list(map(list, [()] * 100_000))  # so many containers start a collection
        return ""

    expected = read_frames(open_origin([path]))
    groups = [needs.module("h5py").File(path, "r")["particles"] for _ in range(100)]
    web.fault = collect
    assert read_frames(open_origin([web.url("a.h5md")])) == expected
    assert len(groups) < 100 and gc.isenabled()
    gc.collect()  # while HDF5 is there


def test_an_hdf5_file_that_changes_or_is_none_is_told(web):
    path = put(web.folder / "a.h5md", tree(40, 5000), 1, 5000)
    origin = open_origin([web.url("a.h5md")])
    put(path, tree(41, 5000), 1, 5000)
    with pytest.raises((TrajectoryError, UsageError), match="has changed since it was opened"):
        read_frames(origin)
    (web.folder / "b.h5md").write_bytes(b"no HDF5 at all" * 100)
    with pytest.raises(TrajectoryError, match=r"b\.h5md cannot be read as H5MD: .*signature"):
        open_origin([web.url("b.h5md")])


@pytest.mark.nightly
def test_of_chunks_that_were_read_nothing_is_held(web):
    put(web.folder / "a.3.zarr", tree(40, 20), 1, 20)
    origin = open_origin([web.url("a.3.zarr")])
    held = []
    for frame in origin.read(range(40)):
        assert frame.positions.any()
        held.append((len(byte_file._remote_files), len(os.listdir("/proc/self/fd"))))
    for first, last in zip(held[5], held[-1], strict=True):
        assert last < first + 10


def test_no_more_is_asked_for_than_frames_lie_in(web):
    path = put(web.folder / "a.3.zarr", tree(40, 5000), 2, 5000)
    expected = read_frames(open_origin([path]))
    origin = open_origin([web.url("a.3.zarr")])
    opened = sum(web.sent.values())
    assert read_frames(origin, [20, 21]) == expected[20:22]
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert sum(web.sent.values()) - opened < total / 10
    once = sum(web.sent.values())
    assert read_frames(pickle.loads(pickle.dumps(origin)), [20, 21]) == expected[20:22]
    assert sum(web.sent.values()) - once < 1000  # whether they are the same


def test_a_changed_directory_is_another_trajectory(web):
    path = put(web.folder / "a.3.zarr")
    first = open_origin([web.url("a.3.zarr")])
    shutil.rmtree(path)
    put(path, tree(15))
    ask_again(first.files[0].stamps)
    second = open_origin([web.url("a.3.zarr")])
    assert second.fingerprint != first.fingerprint
    assert read_frames(second) == read_frames(open_origin([path]))


def test_what_cannot_be_read_is_named(web):
    needs.module("zarr")
    write(web.folder / "plain.3.zarr", tree())
    with pytest.raises(
        TrajectoryError, match=r"plain\.3\.zarr tells nowhere which arrays it has.*consolidate_metadata"
    ):
        open_origin([web.url("plain.3.zarr")])
    with pytest.raises(TrajectoryError, match="tells nowhere which arrays it has"):
        open_origin([web.url("nowhere.zarr")])
    path = put(web.folder / "a.3.zarr")
    origin = open_origin([web.url("a.3.zarr")])
    shutil.rmtree(path / BASE / "position/value/c/1")
    with pytest.raises(TrajectoryError, match=r"position/value/c/1/0/0 is missing"):
        read_frames(origin)
    (path / "zarr.json").write_text("<html>")
    path.rename(path.with_name("b.zarr"))
    with pytest.raises(TrajectoryError, match=r"b\.zarr has no metadata of Zarr"):
        open_origin([web.url("b.zarr")])


@pytest.mark.parametrize(
    ("shape", "chunk", "words"),
    [(10**15, 1, "more than .* chunks"), (12, 0, "ZeroDivisionError"), (12, "5", "TypeError")],
)
def test_metadata_that_mean_nothing_are_refused(web, shape, chunk, words):
    path = put(web.folder / "a.3.zarr")
    told = json.loads((path / "zarr.json").read_text())
    array = told["consolidated_metadata"]["metadata"][f"{BASE}/position/value"]
    array["shape"][0], array["chunk_grid"]["configuration"]["chunk_shape"][0] = shape, chunk
    (path / "zarr.json").write_text(json.dumps(told))
    with pytest.raises(TrajectoryError, match=rf"a\.3\.zarr.*{words}"):
        open_origin([web.url("a.3.zarr")])
