"""Rows of all ranks on the first one, and the files of them: disks that are full, chunks that cannot be read."""

import itertools
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
from himach.rows.column import long_table
from himach.rows.spread import Spread, gather

CHUNKS = 12


def rows(comm, nan=False):
    """Return rows of which each rank has every so-manieth chunk, on the first one, and why they are not there."""
    store = RowStore(Memory(sys.maxsize, None))
    for key in range(CHUNKS)[comm.rank :: comm.size]:
        frames = 10 * key + np.arange(key % 4 + 1)
        cells = [(np.nan if nan and frame % 3 else 0.1 * frame,) for frame in frames.tolist()]
        store.put(key, RowChunk.from_values(frames, frames / 7, np.array(cells, [("x", float)])))
    failed = gather(comm, store)
    assert bool(store._in_memory) == (comm.rank == 0)  # the others' room is free
    return Spread.from_store(store), failed


def spread(size=3, **options):
    (result, failed), *_ = on_threads(size, lambda comm: rows(comm, **options))
    assert failed is None
    return result


def write(result, path):
    table = long_table(result)
    table.long.write_table(path, list(table), table)
    return table["x"]._written[2]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_files_are_those_of_one_rank(tmp_path, size):
    result = spread(size)
    starts, table = write(result, tmp_path / "a.csv"), result.table()
    data = (tmp_path / "a.csv").read_bytes()
    assert data == content(table) and starts[-1] == len(data)
    assert [line.split(",")[-1] for line in data[starts[3] : starts[4]].decode().split()] == ["30", "31", "32", "33"]
    long_table(result)["x"].write_array(tmp_path / "x.npy")
    array = np.load(tmp_path / "x.npy")
    assert array.dtype == table["x"].dtype
    np.testing.assert_array_equal(array, table["x"])


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/full", "No space left on device"), ("/no/a.csv", "No such file or directory")]
)
def test_what_cannot_be_written_is_told(path, why):
    with pytest.raises(HimachError, match=f"^{path} cannot be written \\({why}\\)$"):
        write(spread(), Path(path))


def test_what_is_not_whole_takes_no_room(tmp_path):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, usual[1]))
    try:
        with pytest.raises(HimachError, match="File too large"):
            write(spread(), tmp_path / "a.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (tmp_path / "a.csv").stat().st_size == 0


@pytest.mark.parametrize("method", ["chunk", "put"])
def test_a_chunk_that_cannot_be_read_or_kept_is_told_by_the_first_rank(monkeypatch, method):
    before = getattr(RowStore, method)

    def failing(store, key, *arguments):
        if key == 7 and (method == "chunk" or 0 in store.counts):
            raise HimachError("the disk is broken")
        return before(store, key, *arguments)

    monkeypatch.setattr(RowStore, method, failing)
    failed = on_threads(3, lambda comm: (str(rows(comm)[1]), comm.allreduce(1)))
    assert failed == [("the disk is broken", 3), ("None", 3), ("None", 3)]


@pytest.mark.parametrize("count", [1, 4, 7, 30])
def test_bins_pass_over_what_is_no_number(count):
    result = spread(nan=True)
    bins, x = result.bins(["x"], count), result.table()["x"]
    edges = [len(x) * i // count for i in range(count + 1)]
    parts = [x[start:stop] for start, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(bins["x"].firsts, [part[0] for part in parts])
    np.testing.assert_array_equal(bins["x"].least, [np.fmin.reduce(part) for part in parts])
    np.testing.assert_array_equal(bins["x"].most, [np.fmax.reduce(part) for part in parts])
