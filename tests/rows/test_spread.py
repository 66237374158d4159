"""Rows of all ranks on the first one: their columns, and files; disks that are full, chunks that cannot be read."""

import itertools
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.threads import on_threads

import himach
from himach.engine import Memory
from himach.engine.pairs.emission import RowEmission
from himach.engine.rows import RowChunk, RowStore
from himach.engine.stamps import Stamps
from himach.errors import HimachError
from himach.output.cells import plain
from himach.rows.column import long_table
from himach.rows.spread import Spread, chunk_cells, gather, table_layout

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


CELLS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**53 + 1, 2**63, -(2**63), 2**70]),
    st.floats(width=32),
    st.booleans(),
    st.sampled_from(["", "a"]),
    st.none(),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int16, st.integers(-9, 9)),
    st.sampled_from(
        [np.bool_(True), np.float64(0.1), np.complex64(1j), 2j, np.datetime64(5, "s"), np.timedelta64(5, "s")]
    ),
)


def emitted(rows):
    """Return rows as the engine gives them back, which are of frames 0, 1, ..."""
    emission = RowEmission(Stamps(), range(len(rows)))
    values = []
    for step, row in enumerate(rows):
        emission.begin(step, float(step), None)
        emission.extend(himach.Row(**row))
        (block,) = emission.close_chunk(1)
        values.append(block.values[0] if block.values.dtype.hasobject else block.values[0].copy())
    return values


def same(first, other):
    if isinstance(other, list):  # in which Python's own numbers may be in the place of numpy's
        return isinstance(first, list) and list(map(repr, plain(first))) == list(map(repr, plain(other)))
    return first.dtype == other.dtype and first.tobytes() == other.tobytes()


@given(st.lists(st.dictionaries(st.sampled_from("abc"), CELLS, min_size=1), min_size=1, max_size=6))
def test_columns_are_those_of_one_table(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    whole = himach.Table({name: [row.get(name) for row in rows] for name in names})
    store = RowStore(Memory(sys.maxsize, None))
    for at, value in reversed(list(enumerate(emitted(rows)))):
        uniform = not isinstance(value, tuple)
        cells = np.array([value], value.dtype) if uniform else [value]
        store.put(at, RowChunk.from_values(np.array([at]), np.array([float(at)]), cells))
    layout = table_layout(store)
    assert list(layout) == ["time_ps", *names, "frame"]
    result = [chunk_cells(store.chunk(at), layout, list(names)) for at in range(len(rows))]
    for name in names:
        if layout[name] is None:
            joined = himach.Table({name: [cell for cells in result for cell in cells[name]]})[name]
        else:
            joined = np.concatenate([cells[name] for cells in result])
        assert same(joined, whole[name]), (name, joined, whole[name])


def test_a_large_negative_integer_beside_floats_stays_what_it_is():
    store = RowStore(Memory(sys.maxsize, None))
    for key, cells in enumerate(
        [np.array([(-(2**60),), (1,)], [("a", int)]), np.array([(0.5,), (1.5,)], [("a", float)])]
    ):
        store.put(key, RowChunk.from_values(np.arange(2) + 2 * key, np.arange(2.0), cells))
    assert table_layout(store)["a"] is None
