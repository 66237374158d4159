"""Which columns a table of rows has: those of the same cells in one table."""

import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import himach
from himach.engine import Memory
from himach.engine.pairs.emission import RowEmission
from himach.engine.rows import RowChunk, RowStore
from himach.engine.stamps import Stamps
from himach.output.cells import plain
from himach.rows.layout import chunk_cells, table_layout

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
