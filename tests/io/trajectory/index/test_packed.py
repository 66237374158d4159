"""Indexes and times come back from a store's file as they were packed, or not at all."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.io_samples import make

from himach.io.trajectory.index import packed
from himach.io.trajectory.index.packed import (
    are_packed,
    load_indexes,
    load_times,
    pack_indexes,
    pack_times,
)
from himach.io.trajectory.index.timeline import EvenTimeline, JoinedTimeline, ListedTimeline
from himach.io.trajectory.index.walk import read_index
from himach.io.trajectory.index.xdr_index import IndexTimeline

from .files import seen

TIMES = [0.5 * i for i in range(30)] + [20.0 + i**2 for i in range(5)]


@pytest.fixture(scope="module", params=[0, 1 << 20], ids=["mapped", "small"])
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    paths = [make(folder / name, TIMES) for name in ("a.xtc", "b.trr")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "SMALL_BYTES", request.param)
        yield {str(path): read_index(str(path), path.suffix[1:].upper()) for path in paths}


@pytest.fixture(scope="module")
def stored(files, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store") / "x-index"
    path.write_bytes(b"".join(pack_indexes(files)))
    return path


def test_indexes_come_back_from_memory_and_mapped(files, stored):
    for content in (stored.read_bytes(), str(stored)):
        indexes = load_indexes(content)
        assert {path: (index.facts, seen(index)) for path, index in indexes.items()} == {
            path: (index.facts, seen(index)) for path, index in files.items()
        }
        assert are_packed(content, files)
        assert not are_packed(content, {path: files[path] for path in list(files)[:1]})
    columns = np.load(stored, mmap_mode="r")
    assert columns["time"][: len(TIMES)].tolist() == TIMES
    assert load_indexes(None) == load_indexes(str(stored) + "-none") == {}


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_index_is_missing(files, stored, tmp_path_factory, data):
    whole = stored.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bad = bytearray(whole)
    bad[at] ^= data.draw(st.integers(1, 255))
    damaged = tmp_path_factory.getbasetemp() / "x-index"
    for content in (bytes(bad), whole[:at]):
        damaged.write_bytes(content)
        for source in (content, str(damaged)):
            for path, index in load_indexes(source).items():
                assert seen(index) == seen(files[path])
    assert not are_packed(whole[:at], files)


def test_rows_that_changed_places_are_noticed(files, stored, tmp_path):
    """As where a file system brings a block of another place: the sum of all words is right."""
    content = stored.read_bytes()
    begin = content.index(b"\n") + 1
    row = packed.COLUMNS.itemsize
    swapped = content[:begin] + content[begin + row : begin + 2 * row] + content[begin : begin + row]
    damaged = tmp_path / "x-index"
    damaged.write_bytes(swapped + content[begin + 2 * row :])
    assert damaged.stat().st_size == len(content) and damaged.read_bytes() != content
    assert load_indexes(str(damaged)) == load_indexes(damaged.read_bytes()) == {}


def test_a_replaced_index_stays_mapped(files, stored, tmp_path):
    path, copy = next(iter(files)), tmp_path / "x-index"
    copy.write_bytes(stored.read_bytes())
    before = load_indexes(str(copy))[path]
    copy.unlink()  # as another job that stores the index of a file that has grown
    copy.write_bytes(b"".join(pack_indexes({"/another/file": files[path], **files})))
    assert seen(before) == seen(files[path])


def test_times(files):
    index = next(iter(files.values()))
    known = lambda: files  # noqa: E731
    for times in (
        EvenTimeline(10, 0.5, 3.0, 7.0),
        ListedTimeline(np.array([1.0, 2.0, 4.0])),
        IndexTimeline(index, 2.0),
        JoinedTimeline([(IndexTimeline(index, 2.0), 20), (EvenTimeline(10, 0.5), 5), (ListedTimeline(np.ones(3)), 2)]),
    ):
        content = pack_times(times)
        numbers = np.arange(len(times))
        again = load_times(content, len(times), known)
        assert again.at(numbers).tobytes() == times.at(numbers).tobytes()
        assert load_times(content, len(times) + 1, known) is None
        assert load_times(content[: len(content) // 2], len(times), known) is None
        assert load_times(None, len(times), known) is None
    assert load_times(pack_times(IndexTimeline(index)), index.n_frames, dict) is None
