"""Parts come back as they were written, or the frames that are chosen of them."""

import math
import os
import pickle
import stat
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyroaring import BitMap64
from support.needs import small_disk

import himach
from himach.checkpoint.objects import NotPlainError, as_dtype, describe
from himach.checkpoint.part import BadPartError, open_part, read_summary, write_part
from himach.engine.pairs.block import SHARDS, Form
from himach.engine.pairs.emission import Emission
from himach.engine.pairs.keys import ENCODED
from himach.engine.pairs.values import Pickled
from himach.engine.shuffle import block_file
from himach.engine.stamps import FrameTable, Stamps

QUICK = settings(max_examples=100, suppress_health_check=list(HealthCheck))


class Made:
    """Blocks of chunks of frames: `frames` is for each frame its number, box and items."""

    def __init__(self, chunks, first=0, step=1):
        stamps = Stamps()
        emission = Emission(stamps)
        self.blocks, numbers, self.covered = [], [], BitMap64()
        for last, chunk in enumerate(chunks, 1):
            for items in chunk:
                number = first + step * len(self.covered)
                self.covered.add(number)
                before = len(stamps)
                emission.begin(number, number / 4, None if number % 3 == 2 else np.full(6, number, np.float32))
                emission.extend(items)
                numbers += [number] * (len(stamps) - before)
            self.blocks += emission.close_chunk(SHARDS, last == len(chunks))
        self.table = stamps.table()
        self.numbers = np.array(numbers, dtype=np.int64)
        self.frames = replace(self.table, steps=self.numbers)

    def write(self, directory: Path, pickles=False, combined=False, **named) -> Path:
        return write_part(
            directory, self.blocks, self.frames, self.covered, combined=combined, pickles=pickles, **named
        )


def exact(value):
    """Return what only an equal value of the same type has, down to the bits of floats and the layout of arrays."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind is tuple:
        return kind, tuple(map(exact, value))
    if kind is np.ndarray or isinstance(value, np.generic):
        dtype = value.dtype
        layout = (dtype.str, dtype.char, dtype.descr, dtype.isalignedstruct) if kind is np.ndarray else dtype.char
        writeable = value.flags.writeable if kind is np.ndarray else None
        # Copies of numpy's leave out what lies between fields.
        parts = tuple(exact(value[name]) for name in dtype.names) if dtype.names else value.tobytes()
        return kind, repr(layout), value.shape, parts, writeable
    if kind in (int, str, bytes, bool, type(None), Pickled):
        return kind, value
    raise AssertionError(f"a value of {kind} is in a block")


def spread(block, numbers):
    """Return every pair of a block as (shard, key, frame number, order, value), row after row."""
    shards = np.repeat(np.arange(len(block.bounds) - 1), np.diff(block.bounds)).tolist()
    orders = [None] * len(block) if block.order is None else block.order.tolist()
    pairs = []
    for row, (shard, key, at, order) in enumerate(
        zip(shards, block.plain_keys(), block.at.tolist(), orders, strict=True)
    ):
        value = None if block.values is None else block.values[row]
        if block.form == Form.BITS:
            bits = [64 * j + b for j, word in enumerate(value.tolist()) for b in range(64) if word >> b & 1]
            assert bits
            pairs += [(shard, key, int(numbers[at + bit]), None, None) for bit in bits]
        elif block.form == Form.INTERVAL:
            assert value > 0
            pairs += [(shard, key, int(numbers[at + frame]), None, None) for frame in range(int(value))]
        else:
            pairs.append((shard, key, int(numbers[at]), order, exact(value)))
    return pairs


def twin(blocks, numbers, expected=None):
    """Return for each kind all pairs of some frames, shard by shard, in each in the order of blocks and rows."""
    kinds = {}
    for block in blocks:
        kinds.setdefault(block.kind, []).append(block)
    details = {}
    for kind, alike in kinds.items():
        ordered = any(block.order is not None for block in alike)
        pairs = [pair for block in alike for pair in spread(block, numbers)]
        pairs = [
            (s, k, f, (o or 0) if ordered else None, v) for s, k, f, o, v in pairs if expected is None or f in expected
        ]
        # Within a shard in their order, by a sort that keeps it.
        if pairs:
            details[repr(kind)] = sorted(pairs, key=lambda pair: pair[0])
    return details


def some_frames(frames):
    """Return chunks of frames that yield pairs of every form."""
    odd = [3.5, "text", None, (1, ("a", 2.0)), b"bytes", np.arange(3), 1 << 80, True, -0.0, math.nan, np.float32(2)]
    odd += [2j, np.array(2), ()]
    chunks = [[]]
    for frame in range(frames):
        items = [himach.Pairs(np.arange(frame % 7), np.arange(frame % 7, dtype=np.float32))]
        items.append(himach.Pairs(np.arange(20)[frame % 5 :][:, np.newaxis]))
        items.append(himach.Pairs(np.array([7 * frame % 40, 50])))
        items.append((("key", frame % 3), odd[frame % len(odd)]))
        items.append((frame % 4, float(frame)))
        chunks[-1].append([] if frame % 6 == 5 else items)
        if frame % 40 == 39:
            chunks.append([])
    return chunks


class Point:
    """A value that is no plain one."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x

    __hash__ = None


text = st.text(st.characters(exclude_categories=[]), max_size=5)  # with surrogates
scalars = st.one_of(
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 255, 256, -128, -129]),
    st.floats(),
    st.complex_numbers(),
    st.booleans(),
    st.none(),
    text,
    st.binary(max_size=5),
)
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.array_dtypes(max_size=3),
    hnp.nested_dtypes(max_itemsize=64),
    st.sampled_from([np.dtype("g"), np.dtype("G"), np.dtype("S0"), np.dtype("V3")]),
    st.just(np.dtype([("a", "i1"), ("b", "f8"), ("c", "<M8[ns]", (2,))])),
)


def arrays(dtype, rows=None):
    """Return arrays of a dtype, of any bytes: so nan has payloads."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    return shapes.flatmap(lambda shape: array_of(dtype, shape if rows is None else (rows, *shape[1:])))


def array_of(dtype, shape):
    nbytes = dtype.itemsize * int(np.prod(shape))
    if dtype.kind == "U":
        return hnp.arrays(dtype, shape)
    return st.binary(min_size=nbytes, max_size=nbytes).map(
        lambda data: np.frombuffer(data, np.uint8).view(dtype).reshape(shape).copy() if data else np.empty(shape, dtype)
    )


numpys = st.one_of(
    hnp.scalar_dtypes().flatmap(hnp.from_dtype),
    st.sampled_from([np.str_("a\0"), np.str_(""), np.bytes_(b"\0"), np.float32("nan"), np.float16(1)]),
    dtypes.flatmap(arrays),
)
plain = st.recursive(st.one_of(scalars, numpys), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
keys = st.recursive(
    st.one_of(st.integers(-3, 3), st.integers(), st.floats(allow_nan=False), text, st.binary(max_size=4), st.none()),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


@st.composite
def columns(draw):
    n = draw(st.integers(0, 6))
    width = draw(st.integers(0, 2))
    of = st.integers(-3, 60) if draw(st.booleans()) else st.integers(-(2**63), 2**63 - 1)
    drawn = draw(hnp.arrays(np.int64, (n, width) if width else n, elements=of))
    if draw(st.booleans()):
        return himach.Pairs(drawn)
    return himach.Pairs(drawn, draw(dtypes.flatmap(lambda dtype: arrays(dtype, n))))


items = st.one_of(columns(), st.tuples(keys, st.one_of(scalars, plain)))
chunks = st.lists(st.lists(st.lists(items, max_size=4), max_size=4), min_size=1, max_size=3)


def check(made, path, expected, pickles):
    """Compare what is read of a part, at once and by shards, with what was written."""
    part = open_part(path, trusted=pickles)
    assert part.covered == made.covered and not part.combined
    assert part.frames.steps.tolist() == made.numbers.tolist()
    assert part.frames.times.tobytes() == made.table.times.tobytes()
    assert (part.frames.boxes is None) == (made.table.boxes is None)
    assert part.frames.boxes is None or part.frames.boxes.tobytes() == made.table.boxes.tobytes()
    assert twin(part.chosen()[0], part.frames.steps) == twin(made.blocks, made.numbers)
    assert part.pairs == sum(len(spread(block, made.numbers)) for block in made.blocks)
    chosen, frames = part.chosen(expected, offset=5)
    there = np.concatenate([np.full(5, -1), frames.steps])
    assert twin(chosen, there) == twin(made.blocks, made.numbers, expected)
    assert frames.steps.tolist() == [number for number in made.numbers.tolist() if number in expected]
    at = {number: row for row, number in enumerate(made.numbers.tolist())}
    rows = [at[number] for number in frames.steps.tolist()]
    assert frames.times.tobytes() == made.table.times[rows].tobytes()
    boxes = np.full((len(rows), 6), np.nan, np.float32) if made.table.boxes is None else made.table.boxes[rows]
    assert (frames.boxes is None) == bool(np.isnan(boxes).all())
    assert frames.boxes is None or frames.boxes.tobytes() == boxes.tobytes()
    for block, whole in zip(part.on_disk(3), part.chosen()[0], strict=True):
        for start, stop in ((0, 100), (100, 101), (101, SHARDS)):
            subset, same = block.part(start, stop), whole.part(start, stop)
            assert (subset.at - 3).tolist() == same.at.tolist()
            assert subset.bounds.tolist() == same.bounds.tolist()
            assert subset.plain_keys() == same.plain_keys()
    part.close()


@QUICK
@given(chunks, st.sets(st.integers(0, 12)), st.integers(1, 3))
def test_what_map_made_comes_back_to_the_last_bit(tmp_path, chunks, expected, step):
    made = Made(chunks, step=step)
    check(made, made.write(tmp_path, pickles=True), BitMap64(expected), True)


def test_records_come_back_as_records(tmp_path):
    """Their fields are attributes, of each, and of those within them."""
    values = np.rec.array([(1, 0.5), (2, 1.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    made = Made([[[himach.Pairs([7, 8], values)], [(3, values[0]), (3, values[1])]]])
    part = open_part(made.write(tmp_path, pickles=True), trusted=True)
    assert twin(part.chosen()[0], part.frames.steps) == twin(made.blocks, made.numbers)
    types = [type(value) for block in part.chosen()[0] for value in block.plain_values()]
    assert types == [type(value) for block in made.blocks for value in block.plain_values()]
    assert np.record in types


def test_records_within_others_are_no_columns():
    """What `numpy.save()` says of them makes others, which are equal to them."""
    record = np.dtype((np.record, [("a", "<i4")]))
    assert describe(np.dtype([("inner", record)])) is None
    assert as_dtype(describe(record)).type is np.record
    assert as_dtype(describe(np.dtype([("inner", "<i4", 3)]))) == [("inner", "<i4", 3)]


@pytest.mark.parametrize("together", [1, 12, 450, 1 << 14])
def test_many_pieces(tmp_path, monkeypatch, together):
    monkeypatch.setattr(block_file, "PIECE_BYTES", together)
    made = Made(some_frames(100))
    check(made, made.write(tmp_path), BitMap64(range(0, 100, 3)), False)


@pytest.mark.parametrize("expected", [[], [0], range(100), range(0, 100, 2), range(99, 150), [3, 40, 41, 42, 77]])
def test_some_frames_of_all_forms(tmp_path, expected):
    made = Made(some_frames(100))
    assert {block.form for block in made.blocks} == set(Form)
    assert {block.width for block in made.blocks} == {ENCODED, 0, 1}
    assert any(block.order is not None for block in made.blocks)
    check(made, made.write(tmp_path), BitMap64(expected), False)


def test_bits_of_more_than_one_word(tmp_path):
    rng = np.random.default_rng(1)
    frames = [[himach.Pairs(np.flatnonzero(rng.random(50) < 0.5))] for _ in range(700)]
    made = Made([frames])
    assert {block.values.shape[1:] for block in made.blocks if block.form == Form.BITS} == {(8,), (4,)}
    for expected in (range(0, 700, 3), range(510, 515), range(64, 128), range(699)):
        check(made, made.write(tmp_path), BitMap64(expected), False)


def test_what_combine_made_is_used_as_a_whole_only(tmp_path):
    made = Made(some_frames(10))
    part = open_part(made.write(tmp_path, combined=True), trusted=False)
    assert part.combined
    assert twin(part.chosen(BitMap64(range(50)))[0], made.numbers) == twin(made.blocks, made.numbers)
    with pytest.raises(ValueError, match="whole"):
        part.chosen(BitMap64(range(9)))


@QUICK
@given(st.sets(st.integers(0, 300)), st.integers(1, 1000), st.integers(0, 2**40))
def test_covered_frames(tmp_path, numbers, step, first):
    covered = BitMap64([first + step * number for number in numbers])
    table = FrameTable(np.empty(0, np.int64), np.empty(0))
    path = write_part(tmp_path, [], table, covered, combined=False, pickles=False)
    summary = read_summary(path)
    assert (summary.covered, summary.pairs, summary.nbytes) == (covered, 0, path.stat().st_size)
    assert open_part(path, trusted=False).covered == covered


def test_pickles_only_where_they_are_allowed(tmp_path):
    made = Made([[[(1, Point(3)), (2, (1, 2))]]])
    with pytest.raises(NotPlainError, match="Point"):
        made.write(tmp_path)
    assert os.listdir(tmp_path) == []
    path = made.write(tmp_path, pickles=True)
    with pytest.raises(BadPartError, match="pickled"):
        open_part(path, trusted=False)
    (block,) = open_part(path, trusted=True).chosen()[0]
    assert sorted(block.plain_values(), key=lambda value: type(value) is tuple) == [Point(3), (1, 2)]


class Bomb:
    def __reduce__(self):
        return os._exit, (3,)


def test_reading_unpickles_nothing(tmp_path):
    made = Made([[[(1, 1.0)]]])
    (block,) = made.blocks
    block.values[0] = Pickled(pickle.dumps(Bomb()))
    part = open_part(made.write(tmp_path, pickles=True), trusted=True)
    (block,) = part.chosen()[0]
    assert type(block.values[0]) is Pickled


def test_of_another_map(tmp_path):
    path = Made(some_frames(3)).write(tmp_path, identity="this one")
    assert open_part(path, trusted=False, identity="this one").pairs
    with pytest.raises(BadPartError, match="another map"):
        open_part(path, trusted=False, identity="that one")


def test_a_part_is_its_users_alone(tmp_path):
    before = os.umask(0)
    try:
        path = Made(some_frames(3)).write(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_left_on_a_full_disk(tmp_path):
    large = [[[himach.Pairs(np.arange(100_000), np.arange(100_000.0))]]]
    with small_disk(tmp_path / "small", "size=1M") as disk:
        with pytest.raises(OSError, match="No space"):
            Made(large).write(disk)
        assert os.listdir(disk) == []
        path = Made(some_frames(3)).write(disk)
        assert os.listdir(disk) == [path.name]


@pytest.mark.parametrize("keys", ["many", "one"])
def test_memory_to_write_and_to_look_through_a_part_is_small(tmp_path, keys):
    key = np.arange(200_000) if keys == "many" else np.zeros(200_000, np.int64)
    blocks = [Made([[[himach.Pairs(key, np.arange(200_000.0))]]]).blocks[0] for _ in range(20)]
    table = FrameTable(np.zeros(1, np.int64), np.zeros(1))
    tracemalloc.start()
    try:
        path = write_part(tmp_path, blocks, table, BitMap64([0]), combined=False, pickles=False)
        part = open_part(path, trusted=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert part.nbytes > 70e6
    assert peak < 12e6
