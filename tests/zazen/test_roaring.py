"""The reader of roaring bitmaps beside a loop over a Python set, and what it refuses."""

from __future__ import annotations

import struct

import numpy as np
import pyroaring
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.zazen import selection
from himach.zazen.roaring import mark
from himach.zazen.selection import constant, count_frames, mark_frames, n_words

KINDS = [pyroaring.BitMap, pyroaring.BitMap64, pyroaring.FrozenBitMap, pyroaring.FrozenBitMap64]
TOP = 300_000


@st.composite
def held_sets(draw):
    """Sets whose containers are arrays, bitsets and runs."""
    held: set[int] = set(draw(st.sets(st.integers(0, TOP), max_size=30)))
    for _ in range(draw(st.integers(0, 3))):
        first, length = draw(st.integers(0, TOP)), draw(st.integers(0, 100_000))
        held |= set(range(first, min(first + length, TOP), draw(st.sampled_from([1, 2, 40]))))
    return held


@st.composite
def ranges(draw):
    start, stop = sorted(draw(st.tuples(st.integers(0, TOP), st.integers(0, TOP))))
    return range(start, stop, draw(st.sampled_from([1, 1, 2, 63, 64, 1000])))[:: draw(st.sampled_from([1, -1]))]


def positions_of(words):
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


@settings(max_examples=150, deadline=None)
@given(held_sets(), ranges(), st.sampled_from(KINDS), st.booleans(), st.sampled_from([64, 4096, 1 << 21]))
def test_sets_become_bitmaps(held, frames, kind, optimized, window):
    bitmap = kind(held)
    if optimized and hasattr(bitmap, "run_optimize"):
        bitmap.run_optimize()
    expected = {p for p, frame in enumerate(frames) if frame in held}
    words = np.zeros(n_words(len(frames)), dtype=np.uint64)
    wide = "64" in kind.__name__
    mark(words, len(frames), frames.start, frames.step, bitmap.serialize(), wide)
    assert positions_of(words) == expected
    assert count_frames(bitmap, frames) == len(expected)
    if frames:
        assert constant(bitmap, frames) in ({None, bool(expected)} if len(expected) in (0, len(frames)) else {None})
    if len(frames) <= 100 * window:
        before, selection.WINDOW = selection.WINDOW, window
        try:
            words[:] = 0
            mark_frames(bitmap, frames, words)
        finally:
            selection.WINDOW = before
        assert positions_of(words) == expected


@pytest.mark.parametrize("start", [2**32 - 100, 2**33 + 5, 2**40])
def test_large_frame_numbers(start):
    held = pyroaring.BitMap64(range(start - 50, start + 150, 2))
    for frames in (range(start, start + 200), range(start + 199, start - 1, -1), range(start - 90, start + 300, 7)):
        words = np.zeros(n_words(len(frames)), dtype=np.uint64)
        mark_frames(held, frames, words)
        assert positions_of(words) == {p for p, frame in enumerate(frames) if frame in held}
        assert count_frames(held, frames) == len(held & pyroaring.BitMap64(frames))
    # 32 bits hold no such frames; the upper end must not wrap.
    words = np.zeros(4, dtype=np.uint64)
    mark_frames(pyroaring.BitMap([0, 5, 2**32 - 1]), range(2**32 - 10, 2**32 + 100), words)
    assert positions_of(words) == {9}


SAMPLES = {
    "arrays": pyroaring.BitMap([1, 5, 2**17, 2**17 + 9]),
    "bitset": pyroaring.BitMap(range(0, 20_000, 2)),
    "runs": pyroaring.BitMap(range(100_000)),
    "wide": pyroaring.BitMap64([3, 2**33, 2**34 + 7]),
}
SAMPLES["runs"].run_optimize()


def attempt(data, wide=False):
    words = np.zeros(20, dtype=np.uint64)
    mark(words, 1280, 0, 1, data, wide)


@pytest.mark.parametrize("name", SAMPLES)
def test_data_cut_short_or_too_long_is_refused(name):
    data, wide = SAMPLES[name].serialize(), name == "wide"
    attempt(data, wide)
    for n in {*range(min(len(data), 80)), *range(max(0, len(data) - 40), len(data))}:
        with pytest.raises(ValueError, match="not a roaring bitmap"):
            attempt(data[:n], wide)
    with pytest.raises(ValueError, match="not a roaring bitmap"):
        attempt(data + b"\0", wide)


@pytest.mark.parametrize(
    "data, wide",
    [
        (struct.pack("<II", 12345, 0), False),  # another cookie
        (struct.pack("<II", 12346, 70_000), False),  # more containers than there are keys
        (struct.pack("<IIHHHHIIHH", 12346, 2, 1, 0, 1, 0, 24, 26, 5, 5), False),  # one key twice
        (struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, 7, 7), False),  # one value twice
        (struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, 7, 6), False),  # values out of order
        (struct.pack("<IBHHHHH", 12347, 1, 0, 0, 1, 65_000, 1_000), False),  # a run over the end
        (struct.pack("<IBHHHHHHH", 12347, 1, 0, 0, 2, 5, 10, 8, 1), False),  # runs that overlap
        (struct.pack("<QIIIIII", 2, 7, 12346, 0, 7, 12346, 0), True),  # one upper half twice
        (struct.pack("<QIII", 1, 2**31, 12346, 0), True),  # beyond what an integer holds
        (struct.pack("<Q", 2**63), True),
        (b"", False),
    ],
)
def test_malformed_data_is_refused(data, wide):
    with pytest.raises(ValueError, match="not a roaring bitmap"):
        attempt(data, wide)


@settings(max_examples=300)
@given(st.sampled_from(sorted(SAMPLES)), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))
def test_damaged_data_is_refused_or_read_without_harm(name, damage):
    data = bytearray(SAMPLES[name].serialize())
    for at, value in damage:
        data[at % len(data)] = value
    words = np.zeros(22, dtype=np.uint64)
    try:
        mark(words[1:21], 1270, 3, 1, bytes(data), name == "wide")
    except ValueError as error:
        assert "not a roaring bitmap" in str(error)
    assert words[0] == words[21] == 0
    assert int(words[20]) >> (1270 % 64) == 0


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="1300 positions do not fit into 20 words"):
        mark(np.zeros(20, dtype=np.uint64), 1300, 0, 1, b"x", False)
    with pytest.raises(ValueError, match="step"):
        mark(np.zeros(20, dtype=np.uint64), 1280, 0, 0, b"x", False)
