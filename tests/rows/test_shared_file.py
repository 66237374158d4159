"""Files that ranks write together: disks that are full, ranks that do not see the file."""

from __future__ import annotations

import itertools
import os
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from support.threads import on_threads

from himach.engine import Memory
from himach.engine.rows import RowChunk, RowStore
from himach.errors import HimachError
from himach.output.formats import content
from himach.rows import shared_file
from himach.rows import spread as spread_module
from himach.rows.spread import Spread

CHUNKS = 12


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(shared_file, "ROUND_ROWS", 7)


def spread(comm):
    """Return rows of which each rank has every so-manieth chunk."""
    store = RowStore(Memory(sys.maxsize, None))
    for key in range(CHUNKS)[comm.rank :: comm.size]:
        frames = 10 * key + np.arange(key % 4 + 1)
        cells = np.array([(0.1 * frame,) for frame in frames.tolist()], [("x", float)])
        store.put(key, RowChunk.of(frames, frames / 7, cells))
    return Spread.of(comm, store)


def written(comm, path, apart=False):
    found = spread(comm)
    table = found.table()
    names = {name: name for name in found.layout}
    failed = None
    try:
        starts = shared_file.write_table(found, path, list(names), names, apart)
    except HimachError as error:
        failed, starts = str(error), None
    return table, starts, failed


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_file_is_that_of_one_rank(tmp_path, size, apart):
    (table, starts, failed), *others = on_threads(size, lambda comm: written(comm, tmp_path / "a.csv", apart))
    data = (tmp_path / "a.csv").read_bytes()
    assert failed is None and data == content(table) and starts[-1] == len(data)
    assert all(np.array_equal(one[1], starts) for one in others)
    lines = data[starts[3] : starts[4]].decode().splitlines()
    assert [line.split(",")[-1] for line in lines] == ["30", "31", "32", "33"]


def test_the_first_rank_writes_for_those_that_do_not_see_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pread", lambda *given: b"another")
    (table, *_), *_ = on_threads(3, lambda comm: written(comm, tmp_path / "a.csv"))
    assert (tmp_path / "a.csv").read_bytes() == content(table)


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/full", "No space left on device"), ("/no/a.csv", "No such file or directory")]
)
def test_what_cannot_be_written_is_told_by_the_first_rank(path, why):
    (_, _, failed), *others = on_threads(3, lambda comm: written(comm, Path(path)))
    assert failed == f"{path} cannot be written ({why})"
    assert [error for *_, error in others] == [None, None]


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_not_whole_takes_no_room(tmp_path, size):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, usual[1]))
    try:
        (_, _, failed), *_ = on_threads(size, lambda comm: written(comm, tmp_path / "a.csv"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert failed == f"{tmp_path / 'a.csv'} cannot be written (File too large)"
    assert (tmp_path / "a.csv").stat().st_size == 0


def test_a_chunk_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    read = RowStore.chunk

    def failing(store, key):
        if key == 7:
            raise HimachError("the disk is broken")
        return read(store, key)

    def collected(comm):
        found = spread(comm)
        monkeypatch.setattr(RowStore, "chunk", failing)
        told = []
        for call in (
            found.table,
            lambda: found.moments(["x"]),
            lambda: found.bins(["x"], 5),
            lambda: found.summary(5, 3),
            lambda: shared_file.write_array(found, tmp_path / "x.npy", "x", False),
        ):
            try:
                call()
            except HimachError as error:
                told.append(str(error))
        return told

    first, *others = on_threads(3, collected)
    assert first == 5 * ["the disk is broken"] and others == [[], []]


def test_memory_that_the_first_rank_lacks_is_told_and_nobody_waits(monkeypatch):
    def none(kind, size):
        raise MemoryError("no place")

    def collected(comm):
        found = spread(comm)
        monkeypatch.setattr(spread_module, "_room", none)
        try:
            found.collect(["x"], 0, found.rows)
        except MemoryError as error:
            return str(error), comm.allreduce(1)
        return None, comm.allreduce(1)

    assert on_threads(3, collected) == [("no place", 3), (None, 3), (None, 3)]


def test_a_round_is_bounded_by_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_file, "ROUND_ROWS", 1 << 17)
    monkeypatch.setattr(shared_file, "ROUND_BYTES", 3 * 24)
    rounds = []
    windows = Spread.windows

    def watched(found, first, last, rows):
        for window in windows(found, first, last, rows):
            rounds.append(found.starts[window.stop] - found.starts[window.start])
            yield window

    monkeypatch.setattr(Spread, "windows", watched)
    on_threads(2, lambda comm: shared_file.write_table(spread(comm), tmp_path / "a.csv", ["x"], {"x": "x"}, False))
    assert max(rounds) <= 18 and len(rounds) >= 4


@pytest.mark.parametrize("size", [1, 3])
def test_an_array_is_that_of_one_rank(tmp_path, size):
    (table, *_), *_ = on_threads(size, lambda comm: arrayed(comm, tmp_path / "x.npy"))
    found = np.load(tmp_path / "x.npy")
    assert found.dtype == table["x"].dtype
    np.testing.assert_array_equal(found, table["x"])


def arrayed(comm, path):
    found = spread(comm)
    return found.table(), shared_file.write_array(found, path, "x", False)


@pytest.mark.parametrize("count", [1, 4, 7, 30])
def test_bins_pass_over_what_is_no_number(count):
    def binned(comm):
        store = RowStore(Memory(sys.maxsize, None))
        for key in range(CHUNKS)[comm.rank :: comm.size]:
            frames = 10 * key + np.arange(key % 4 + 1)
            cells = np.array([(np.nan if frame % 3 else frame,) for frame in frames.tolist()], [("x", float)])
            store.put(key, RowChunk.of(frames, frames / 7, cells))
        found = Spread.of(comm, store)
        return found.table(), found.bins(["x"], count)

    (table, bins), *_ = on_threads(3, binned)
    x, rows = table["x"], len(table["x"])
    edges = [rows * i // count for i in range(count + 1)]
    parts = [x[start:stop] for start, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(bins["x"].firsts, [part[0] for part in parts])
    np.testing.assert_array_equal(bins["x"].least, [np.fmin.reduce(part) for part in parts])
    np.testing.assert_array_equal(bins["x"].most, [np.fmax.reduce(part) for part in parts])
