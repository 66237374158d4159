"""Parts come back as they were written, or the frames that are chosen of them."""

import math
import os
import pickle
import stat
import struct
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyroaring import BitMap64
from support.needs import sample

import himach
from himach.checkpoint import part
from himach.checkpoint.part import BadPartError, open_part, read_summary, write_part
from himach.engine.pairs.block import SHARDS, Form
from himach.engine.pairs.emission import Emission
from himach.engine.pairs.keys import ENCODED
from himach.engine.pairs.values import Pickled
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

    def write(self, directory: Path, **about) -> Path:
        return write_part(directory, self.blocks, self.frames, self.covered, **about)


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


def check(made, path, expected):
    """Compare what is read of a part with what was written."""
    part = open_part(path)
    assert part.summary.covered == made.covered and not part.summary.combined
    blocks, frames = part.read()
    assert frames.steps.tolist() == made.numbers.tolist()
    assert frames.times.tobytes() == made.table.times.tobytes()
    assert (frames.boxes is None) == (made.table.boxes is None)
    assert frames.boxes is None or frames.boxes.tobytes() == made.table.boxes.tobytes()
    assert twin(blocks, frames.steps) == twin(made.blocks, made.numbers)
    assert part.summary.pairs == sum(len(spread(block, made.numbers)) for block in made.blocks)
    chosen, frames = part.read(expected)
    assert twin(chosen, frames.steps) == twin(made.blocks, made.numbers, expected)
    assert frames.steps.tolist() == [number for number in made.numbers.tolist() if number in expected]
    at = {number: row for row, number in enumerate(made.numbers.tolist())}
    rows = [at[number] for number in frames.steps.tolist()]
    assert frames.times.tobytes() == made.table.times[rows].tobytes()
    boxes = np.full((len(rows), 6), np.nan, np.float32) if made.table.boxes is None else made.table.boxes[rows]
    assert (frames.boxes is None) == bool(np.isnan(boxes).all())
    assert frames.boxes is None or frames.boxes.tobytes() == boxes.tobytes()


@QUICK
@given(chunks, st.sets(st.integers(0, 12)), st.integers(1, 3))
def test_what_map_made_comes_back_to_the_last_bit(tmp_path, chunks, expected, step):
    made = Made(chunks, step=step)
    check(made, made.write(tmp_path), BitMap64(expected))


def test_records_come_back_as_records(tmp_path):
    """Their fields are attributes, of each, and of those within them."""
    values = np.rec.array([(1, 0.5), (2, 1.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    made = Made([[[himach.Pairs([7, 8], values)], [(3, values[0]), (3, values[1])]]])
    blocks, frames = open_part(made.write(tmp_path)).read()
    assert twin(blocks, frames.steps) == twin(made.blocks, made.numbers)
    types = [type(value) for block in blocks for value in block.plain_values()]
    assert types == [type(value) for block in made.blocks for value in block.plain_values()]
    assert np.record in types


@pytest.mark.parametrize("expected", [[], [0], range(100), range(0, 100, 2), range(99, 150), [3, 40, 41, 42, 77]])
def test_some_frames_of_all_forms(tmp_path, expected):
    made = Made(some_frames(100))
    assert {block.form for block in made.blocks} == set(Form)
    assert {block.width for block in made.blocks} == {ENCODED, 0, 1}
    assert any(block.order is not None for block in made.blocks)
    check(made, made.write(tmp_path), BitMap64(expected))


def test_bits_of_more_than_one_word(tmp_path):
    rng = np.random.default_rng(1)
    frames = [[himach.Pairs(np.flatnonzero(rng.random(50) < 0.5))] for _ in range(700)]
    made = Made([frames])
    assert {block.values.shape[1:] for block in made.blocks if block.form == Form.BITS} == {(8,), (4,)}
    for expected in (range(0, 700, 3), range(510, 515), range(64, 128), range(699)):
        check(made, made.write(tmp_path), BitMap64(expected))


def test_what_combine_made_is_used_as_a_whole_only(tmp_path):
    made = Made(some_frames(10))
    part = open_part(made.write(tmp_path, combined=True))
    assert part.summary.combined
    assert twin(part.read(BitMap64(range(50)))[0], made.numbers) == twin(made.blocks, made.numbers)
    with pytest.raises(ValueError, match="whole"):
        part.read(BitMap64(range(9)))


class Bomb:
    def __reduce__(self):
        return os._exit, (3,)


def test_reading_restores_no_value(tmp_path):
    made = Made([[[(1, 1.0)]]])
    made.blocks[0].values[0] = Pickled(pickle.dumps(Bomb()))
    ((block,), _) = open_part(made.write(tmp_path)).read()
    assert type(block.values[0]) is Pickled


def test_a_file_that_is_not_in_the_place_of_another_any_more_is_not_read(tmp_path, monkeypatch):
    path = Made(some_frames(3)).write(tmp_path)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(path.read_bytes())
    foreign.chmod(0o602)
    monkeypatch.setattr(part, "_open", lambda _: foreign.open("rb"))
    with pytest.raises(BadPartError, match="others can have written it"):
        open_part(path)


def refused_or_equal(path, made):
    """Open a damaged part; return whether it was refused."""
    try:
        blocks, frames = open_part(path).read()
    except BadPartError:
        return True
    assert frames.times.tobytes() == made.table.times.tobytes()
    assert twin(blocks, frames.steps) == twin(made.blocks, made.numbers)
    return False


def test_no_torn_part_is_read(tmp_path):
    made = Made([[[himach.Pairs([1], [0.5]), ("a", "b"), (2, (1, None)), (2, np.arange(3))]]])
    path = made.write(tmp_path)
    data = path.read_bytes()
    for length in sample(range(len(data)), 200):
        path.write_bytes(data[:length])
        assert refused_or_equal(path, made)


def test_no_flipped_bit_is_taken_for_pairs(tmp_path):
    """Of 200 bytes each time, of all by night. Some are of no matter: dates, say."""
    made = Made([[[himach.Pairs(np.arange(1000), np.arange(1000.0)), ("a", "b")]]])
    path, refusals = made.write(tmp_path), 0
    data = path.read_bytes()
    places = sample(range(len(data)), 200)
    with path.open("r+b", buffering=0) as file:
        for place in places:
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([data[place] ^ 1 << bit]), place)
                refusals += refused_or_equal(path, made)
            os.pwrite(file.fileno(), bytes([data[place]]), place)
    assert refusals > 0.9 * 8 * len(places)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"identity": ""}', "[" * 100_000])
def test_descriptions_that_make_no_sense(tmp_path, text):
    path = tmp_path / "made.pairs"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("part.json", text)
    for read in (open_part, read_summary):
        with pytest.raises(BadPartError, match="it is torn or damaged"):
            read(path)


def test_a_part_that_was_changed_since_its_check_is_not_read(tmp_path):
    path = Made(some_frames(20)).write(tmp_path)
    part = open_part(path)
    os.utime(path, (1, 1))
    with pytest.raises(BadPartError, match="another file"):
        part.read()


def test_a_pickle_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    checked = open_part(Made(some_frames(3)).write(tmp_path))
    monkeypatch.delattr("himach.engine.stamps.FrameTable")
    with pytest.raises(BadPartError, match=f"pairs {checked.path} cannot be read .*FrameTable.*delete this file"):
        checked.read()


def test_a_part_is_its_users_alone(tmp_path):
    before = os.umask(0)
    try:
        path = Made(some_frames(3)).write(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("keys", ["many", "one"])
def test_memory_to_write_and_to_look_through_a_part_is_small(tmp_path, keys):
    key = np.arange(200_000) if keys == "many" else np.zeros(200_000, np.int64)
    blocks = [Made([[[himach.Pairs(key, np.arange(200_000.0))]]]).blocks[0] for _ in range(20)]
    table = FrameTable(np.zeros(1, np.int64), np.zeros(1))
    tracemalloc.start()
    try:
        path = write_part(tmp_path, blocks, table, BitMap64([0]))
        part = open_part(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert part.summary.nbytes > 70e6
    assert peak < 12e6
