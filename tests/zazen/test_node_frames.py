"""A cache of given frames, marked, beside a Python set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.zazen import NOTHING, InMemory
from himach.zazen.node_frames import bitmaps_of, count_chunks

TOP = 2_000
frame_sets = st.sets(st.integers(0, TOP), max_size=60)


@st.composite
def ranges(draw):
    start, stop = sorted(draw(st.tuples(st.integers(0, TOP), st.integers(0, TOP))))
    return range(start, stop, draw(st.sampled_from([1, 1, 2, 63, 64, 1000])))[:: draw(st.sampled_from([1, -1]))]


def positions_of(words):
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


@given(frame_sets, frame_sets, ranges())
def test_given_frames_become_bits(native, alien, frames):
    for held, words in zip((native, alien), bitmaps_of(InMemory.of(native, alien), frames), strict=True):
        assert words.shape == (-(-len(frames) // 64),)
        assert positions_of(words) == {p for p, frame in enumerate(frames) if frame in held}


@pytest.mark.parametrize("start", [2**32 - 100, 2**33 + 5, 2**40])
def test_large_frame_numbers(start):
    held = set(range(start - 50, start + 150, 2))
    for frames in (range(start, start + 200), range(start + 199, start - 1, -1), range(start - 90, start + 300, 7)):
        native, alien = bitmaps_of(InMemory.of(held), frames)
        assert positions_of(native) == {p for p, frame in enumerate(frames) if frame in held}
        assert not alien.any()


def test_several_stores_mark_the_same_words():
    native, alien = np.zeros((2, 2), dtype=np.uint64)
    for store in (InMemory.of([1, 2], [70]), InMemory.of([2, 3], [71]), NOTHING):
        store.mark(range(100), native, alien)
    assert positions_of(native) == {1, 2, 3}
    assert positions_of(alien) == {70, 71}


@given(frame_sets, frame_sets, st.integers(1, 40))
def test_frames_are_counted_by_chunk(native, alien, chunk_words):
    both = bitmaps_of(InMemory.of(native, alien), range(TOP))
    chunks = -(-len(both[0]) // chunk_words)
    expected = [[sum(f < TOP and f // 64 // chunk_words == i for f in held) for i in range(chunks)]
                for held in (native, alien)]  # fmt: skip
    assert count_chunks(*both, chunk_words).tolist() == expected
