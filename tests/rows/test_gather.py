"""Rows of all ranks on the first one: their columns, and files; disks that are full, chunks that cannot be read."""

import resource
import sys
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.threads import on_threads

import himach
from himach.engine import Memory
from himach.engine.pairs.emission import RowEmission
from himach.engine.rows import RowChunk, RowStore
from himach.engine.shuffle.spill import Scratch
from himach.engine.stamps import Stamps
from himach.errors import HimachError
from himach.output.cells import plain
from himach.output.figures import plots
from himach.rows.layout import chunk_cells, table_layout
from himach.rows.tables import gather

CHUNKS = 12


def rows(comm, folder, long=True, nan=False):
    """Return what makes the table of rows of which each rank has every so-manieth chunk."""
    store = RowStore(Memory(sys.maxsize, folder))
    for key in range(CHUNKS)[comm.rank :: comm.size]:
        frames = 10 * key + np.arange(key % 4 + 1)
        cells = [(np.nan if nan and frame % 3 else 0.1 * frame,) for frame in frames.tolist()]
        store.put(key, RowChunk.from_values(frames, frames / 7, np.array(cells, [("x", float)])))
    make = gather(comm, store, long)
    assert not store._in_memory
    return make


def table(folder, size=3, **options):
    return on_threads(size, lambda comm: rows(comm, folder, **options))[0]()


def test_a_full_disk_is_an_error(tmp_path):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, usual[1]))
    try:
        with pytest.raises(HimachError, match=r"cannot be written, in .*: File too large"):
            table(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("owner", "method"), [(RowStore, "chunk"), (Scratch, "map")])
def test_a_chunk_that_cannot_be_read_or_kept_is_told_by_the_first_rank(monkeypatch, tmp_path, owner, method):
    before = getattr(owner, method)

    def failing(self, item):
        if item == 7 or method == "map":
            raise HimachError("the disk is broken")
        return before(self, item)

    monkeypatch.setattr(owner, method, failing)
    results = on_threads(3, lambda comm: (rows(comm, tmp_path), comm.allreduce(1)))
    assert [total for _, total in results] == [3, 3, 3]
    with pytest.raises(HimachError, match="the disk is broken"):
        results[0][0]()


@pytest.mark.parametrize("count", [1, 4, 7, 29, 100])
def test_plots_get_the_least_and_the_most_of_bins(tmp_path, monkeypatch, count):
    monkeypatch.setattr(plots, "BINS", count)
    long, short = table(tmp_path, nan=True), table(tmp_path, nan=True, long=False)
    thin, x, bins = plots.thin_tables({"a": long, "b": short}), short["x"], min(count, short.rows)
    if short.rows <= 2 * count:
        assert thin["a"] is long
        return
    edges = [len(x) * i // bins for i in range(bins + 1)]
    parts = [x[start:stop] for start, stop in pairwise(edges)]
    np.testing.assert_array_equal(thin["a"]["x"][::2], [np.fmin.reduce(part) for part in parts])
    np.testing.assert_array_equal(thin["a"]["x"][1::2], [np.fmax.reduce(part) for part in parts])
    np.testing.assert_array_equal(thin["a"]["time_ps"][::2], short["time_ps"][edges[:-1]])
    assert thin["b"] is short and list(thin["a"]) == ["time_ps", "x", "frame"]


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
    layout = table_layout([(store.names, store.kinds)])
    assert list(layout) == ["time_ps", *names, "frame"]
    result = [chunk_cells(store.chunk(at), layout) for at in range(len(rows))]
    for name in names:
        parts = [cells[name] for cells in result]
        cells = list(chain(*parts)) if layout[name] is None else np.concatenate(parts)
        joined = himach.Table({name: cells})[name]
        assert same(joined, whole[name]), (name, joined, whole[name])


def test_a_large_negative_integer_beside_floats_of_another_rank_stays_what_it_is():
    stores = []
    for cells in (np.array([(-(2**60),), (1,)], [("a", int)]), np.array([(0.5,), (1.5,)], [("a", float)])):
        stores.append(RowStore(Memory(sys.maxsize, None)))
        stores[-1].put(0, RowChunk.from_values(np.arange(2), np.arange(2.0), cells))
    assert table_layout([(store.names, store.kinds) for store in stores])["a"] is None
