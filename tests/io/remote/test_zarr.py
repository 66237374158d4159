"""Zarr by URL: the frames of the local directory, from the chunks that they lie in."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest
from support import needs
from support.cache_data import Emit

import himach
from himach.errors import TrajectoryError
from himach.io.remote import byte_file
from himach.io.remote.byte_file import ask_again
from himach.io.trajectory.origin import open_origin

from ..trajectory.foreign import minimal_topology, read_frames
from ..trajectory.h5md.trees import BASE, tree, write

zarr = needs.module("zarr")
KINDS = ["a.2.zarrmd", "a.3.zarr"]


def put(path, content=None, *sizes, **how):
    """Write a directory whose metadata tell its arrays."""
    write(path, content or tree(), *sizes, **how)
    zarr.consolidate_metadata(str(path))
    return path


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_of_the_local_directory(web, name):
    path = put(web.folder / name)
    expected = read_frames(open_origin([path]))
    origin = open_origin([web.url(name)])
    assert (origin.n_frames, origin.n_atoms, origin.kinds) == (12, 7, ("ZARRMD",))
    assert read_frames(origin) == expected
    assert read_frames(origin, [7, 2]) == [expected[7], expected[2]]
    assert read_frames(open_origin([web.url(f"{name}/")])) == expected


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


def test_shards(web):
    path = put(web.folder / "a.3.zarr", None, 2, 100, shards=(6, 7, 3))
    assert read_frames(open_origin([web.url("a.3.zarr")])) == read_frames(open_origin([path]))


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


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_runs(web, tmp_path, name):
    path = put(web.folder / name)
    topology = minimal_topology(tmp_path, 7)

    def table(trajectory, cache, **more):
        result = himach.run(Emit(), trajectory, topology, cache=cache, progress=False, **more)
        return {name: values.tolist() for name, values in result.outcome["frames"].items()}

    place = tmp_path / "store"
    expected = table(path, "off")
    assert [table(web.url(name), cache, ranks=2) for cache in ("off", place, place)] == [expected] * 3
    web.fault = lambda number, place: "404" if "/c/" in place or "/0." in place else None
    assert table(web.url(name), place) == expected


def test_a_changed_directory_is_another_trajectory(web):
    path = put(web.folder / "a.3.zarr")
    first = open_origin([web.url("a.3.zarr")])
    shutil.rmtree(path)
    put(path, tree(15))
    ask_again(first.files()[0][0].stamps)
    second = open_origin([web.url("a.3.zarr")])
    assert second.fingerprint != first.fingerprint
    assert read_frames(second) == read_frames(open_origin([path]))


def test_what_cannot_be_read_is_named(web):
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
    with pytest.raises(TrajectoryError, match=r"b\.zarr/zarr\.json is no metadata of Zarr"):
        open_origin([web.url("b.zarr")])


@pytest.mark.parametrize(
    ("shape", "chunk", "words"),
    [(10**15, 1, "chunks of an array"), (12, 0, "ZeroDivisionError"), (12, "5", "TypeError")],
)
def test_metadata_that_mean_nothing_are_refused(web, shape, chunk, words):
    path = put(web.folder / "a.3.zarr")
    told = json.loads((path / "zarr.json").read_text())
    array = told["consolidated_metadata"]["metadata"][f"{BASE}/position/value"]
    array["shape"][0], array["chunk_grid"]["configuration"]["chunk_shape"][0] = shape, chunk
    (path / "zarr.json").write_text(json.dumps(told))
    with pytest.raises(TrajectoryError, match=rf"zarr\.json is no metadata of Zarr: .*{words}"):
        open_origin([web.url("a.3.zarr")])
