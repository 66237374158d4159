"""What a store keeps of where frames begin and when they were taken comes back, or is missing; never another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.io_samples import make

from himach.io.dataset.kept_index import (
    are_packed,
    indexes_in,
    newer_index,
    pack_indexes,
    pack_times,
    times_are_packed,
    times_in,
)
from himach.io.trajectory.index.timeline import EvenTimeline, JoinedTimeline, ListedTimeline
from himach.io.trajectory.index.walk import read_index, taken
from himach.io.trajectory.index.xdr_index import Stored
from himach.io.trajectory.xdr_file import IndexTimeline

TIMES = [0.5 * i for i in range(30)] + [20.0 + i**2 for i in range(5)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    paths = [make(folder / name, TIMES) for name in ("a.xtc", "b.trr")]
    return {str(path): read_index(str(path), path.suffix[1:].upper()) for path in paths}


def places(index):
    return [(*index.place(number), index.time(number)) for number in range(index.n_frames)]


def test_indexes_come_back_from_memory_and_from_a_file(files, tmp_path):
    parts = pack_indexes(files)
    whole = b"".join(parts)
    (tmp_path / "index").write_bytes(whole)
    for content in (whole, Stored(str(tmp_path / "index"), 0, len(whole))):
        found = indexes_in(content)
        assert {path: (one.facts, places(one)) for path, one in found.items()} == {
            path: (one.facts, places(one)) for path, one in files.items()
        }
        assert are_packed(content, files)
        assert not are_packed(content, {path: files[path] for path in list(files)[:1]})
    assert indexes_in(None) == {}
    assert len(whole) < 1000  # even times take next to nothing


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_one_is_missing_or_costs_a_walk(files, tmp_path_factory, data):
    whole = b"".join(pack_indexes(files))
    at = data.draw(st.integers(0, len(whole) - 1))
    bad = bytearray(whole)
    bad[at] ^= data.draw(st.integers(1, 255))
    for content in (bytes(bad), whole[:at]):
        for path, index in indexes_in(content).items():
            assert places(taken(index, path, lambda: None)) == places(files[path])
    assert not are_packed(whole[:at], files)


def test_what_takes_its_place_is_used(files, tmp_path):
    """A job may keep the index of a file that has grown while another job reads the one before."""
    path = next(iter(files))
    store = tmp_path / "x-index"
    store.write_bytes(b"".join(pack_indexes({path: files[path]})))
    before = indexes_in(Stored(str(store), 0, store.stat().st_size))[path]
    before = taken(before, path, lambda: newer_index(str(store), path))
    store.write_bytes(b"".join(pack_indexes({"/another/file/before": files[path], **files})))
    assert places(before) == places(files[path])
    assert isinstance(before.content, Stored)
    store.write_bytes(bytes(store.stat().st_size))
    gone = taken(
        indexes_in(b"".join(pack_indexes(files)))[path].with_content(before.content),
        path,
        lambda: newer_index(str(store), path),
    )
    assert places(gone) == places(files[path])


def test_times(files):
    index = next(iter(files.values()))
    path = next(iter(files))
    known = lambda: files  # noqa: E731
    for times in (
        EvenTimeline(10, 0.5, 3.0, 7.0),
        ListedTimeline(np.array([1.0, 2.0, 4.0])),
        IndexTimeline(index, path, 2.0),
        JoinedTimeline(
            [(IndexTimeline(index, path, 2.0), 20), (EvenTimeline(10, 0.5), 5), (ListedTimeline(np.ones(3)), 2)]
        ),
    ):
        packed = pack_times(times)
        numbers = np.arange(len(times))
        again = times_in(packed, len(times), known)
        assert again.at(numbers).tobytes() == times.at(numbers).tobytes()
        assert times_in(packed, len(times) + 1, known) is None
        assert times_in(packed[: len(packed) // 2], len(times), known) is None
        assert times_are_packed(packed, times)
        assert not times_are_packed(packed[:-1], times)
        assert not times_are_packed(packed, EvenTimeline(10, 0.5, 3.0, 8.0))
        assert times_in(None, len(times), known) is None
    assert times_in(pack_times(IndexTimeline(index, path)), index.n_frames, dict) is None
