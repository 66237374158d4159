"""What is asked of the operating system ahead of reading."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.io_samples import FORMATS, make

from himach.io.dataset.split import split
from himach.io.trajectory import readahead
from himach.io.trajectory.dcd_file import layout_of
from himach.io.trajectory.origin import open_origin
from himach.io.trajectory.readahead import Ahead, ask_for


@given(
    n=st.integers(1, 60),
    start=st.integers(0, 20),
    stride=st.integers(-2, 5).filter(bool),
    batch=st.integers(1, 12),
)
def test_every_frame_is_asked_for_before_it_is_read_and_not_too_early(n, start, stride, batch):
    numbers = [number for number in range(start, start + n * stride, stride) if number >= 0]
    n_frames = max(numbers, default=0) + 8
    asked: list[int] = []
    ahead = Ahead(n_frames, readahead.BATCH_BYTES // batch, asked.extend)
    ahead.begin(numbers)
    for place, number in enumerate(numbers):
        ahead.reach(place)
        assert number in asked
        assert len(asked) <= place + 2 * batch
    assert len(set(asked)) == len(asked)
    beyond = asked[len(numbers) :]
    assert asked[: len(numbers)] == numbers
    assert all(number < n_frames and (number - numbers[0]) % stride == 0 for number in beyond)
    assert not beyond or stride > 0


def test_what_was_asked_for_is_not_asked_for_again():
    asked: list[int] = []
    ahead = Ahead(1000, readahead.BATCH_BYTES // 10, asked.extend)
    for begin in range(0, 1000, 20):
        ahead.begin(range(begin, begin + 20))
        for place in range(20):
            ahead.reach(place)
    assert sorted(set(asked)) == list(range(1000))
    assert len(asked) < 1200


def test_batches_grow_from_a_small_one():
    asked: list[list[int]] = []
    ahead = Ahead(10**6, readahead.BATCH_BYTES // 64, asked.append)
    for begin in (0, 500):
        ahead.begin(range(begin, begin + 500))
        for place in range(500):
            ahead.reach(place)
            if begin == 0 and place == 0:
                assert [len(some) for some in asked] == [2, 4]
    sizes = [len(some) for some in asked]
    assert sizes[:7] == [2, 4, 8, 16, 32, 64, 64]
    assert max(sizes) == 64


def test_neighbours_are_asked_for_together(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    calls = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, begin, length, advice: calls.append((begin, length, advice)))
    monkeypatch.setattr(readahead, "HOLE_BYTES", 5)
    ask_for(str(path), [(0, 10), (10, 20), (25, 30), (50, 60)])
    assert calls == [(0, 30, os.POSIX_FADV_WILLNEED), (50, 10, os.POSIX_FADV_WILLNEED)]
    ask_for(str(tmp_path / "missing"), [(0, 10)])


@pytest.mark.parametrize("name", ["XTC", "TRR", "DCD", "NCDF", "PDB"])
def test_a_reader_asks_for_the_frames_of_its_file(name, monkeypatch):
    topology, trajectory = FORMATS[name]
    origin = open_origin([trajectory], topology)
    expected = [frame.positions.copy() for frame in (next(origin.read([number])) for number in range(6))]
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, begin, length, _advice: asked.append((begin, length)))
    for frame, positions in zip(origin.read(range(6)), expected, strict=True):
        np.testing.assert_array_equal(frame.positions, positions)
    size = os.path.getsize(trajectory)
    begins = layout_of(str(trajectory), origin.n_atoms).begin if name == "DCD" else 0
    assert min(begin for begin, _ in asked) == begins
    assert all(begin + length <= size for begin, length in asked)
    assert sum(length for _, length in asked) >= origin.nbytes(range(6)) - 6


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("name", ["XTC", "TRR", "DCD"])
def test_frames_far_apart_are_read_and_nothing_between_them(name, stride, monkeypatch):
    topology, trajectory = FORMATS[name]
    origin = open_origin([trajectory], topology)
    numbers = np.arange(3, origin.n_frames, stride)
    for frame in origin.read([0]):  # what is opened is read, too
        assert frame.number == 0
    asked, read = [], []
    preadv = os.preadv
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, _begin, length, _advice: asked.append(length))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: read.append(preadv(fd, buffers, at)) or read[-1])
    for taken, frame in enumerate(origin.read(numbers)):
        assert frame.number == numbers[taken]
    assert sum(read) == origin.nbytes(numbers)
    assert sum(asked) == origin.nbytes(numbers)


def test_several_files_and_frame_directories(tmp_path, monkeypatch):
    files = [make(tmp_path / f"{i}.xtc", list(range(10 * i, 10 * i + 10))) for i in range(3)]
    opened = []
    ask = readahead.ask_for
    monkeypatch.setattr(
        "himach.io.trajectory.xdr_file.ask_for", lambda path, places: opened.append(path) or ask(path, places)
    )
    monkeypatch.setattr(
        "himach.io.trajectory.frame_directory.ask_for", lambda path, places: opened.append(path) or ask(path, places)
    )
    assert [frame.number for frame in open_origin(files).read(range(5, 25))] == list(range(5, 25))
    assert set(opened) == {str(path) for path in files}
    opened.clear()
    split(files, tmp_path / "frames", frames_per_file=7)
    origin = open_origin([tmp_path / "frames"])
    opened.clear()
    assert [frame.number for frame in origin.read(range(30))] == list(range(30))
    assert len([path for path in opened if "frames" in path]) >= 4
