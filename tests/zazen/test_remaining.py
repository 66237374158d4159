"""What is left of a selection, against lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.parallel.communicator import alone
from himach.zazen import InMemory, assign, remaining
from himach.zazen.positions import n_words
from himach.zazen.remaining import Remaining

FRAMES = 300


@st.composite
def selections(draw):
    start, stop, step = draw(st.integers(0, FRAMES)), draw(st.integers(0, FRAMES)), draw(st.integers(1, 7))
    return range(min(start, stop), max(start, stop), step)[:: draw(st.sampled_from([1, -1]))]


def made(frames: range, gone: set[int]) -> tuple[Remaining, list[int]]:
    """Return what is left when frames are gone, and its steps."""
    left = np.array([number not in gone for number in frames], dtype=bool)
    return Remaining.of(frames, left), np.flatnonzero(left).tolist()


@given(selections(), st.sets(st.integers(0, FRAMES - 1)), st.data())
def test_positions_are_those_of_a_list(frames, gone, data):
    found, steps = made(frames, gone)
    assert len(found) == len(steps)
    if steps:
        some = np.array(data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=20)), dtype=np.int64)
        assert found.steps(some).tolist() == [steps[i] for i in some]
        assert found.numbers(some).tolist() == [frames[steps[i]] for i in some]
        assert (found[0], found[-1]) == (frames[steps[0]], frames[steps[-1]])


@given(selections(), st.sets(st.integers(0, FRAMES - 1)), st.sets(st.integers(0, FRAMES - 1)), st.booleans())
def test_bits_are_chosen(frames, gone, held, few_at_once):
    found, steps = made(frames, gone)
    words = np.zeros(n_words(len(frames)), dtype=np.uint64)
    InMemory.of(native=held).mark(frames, words, np.zeros_like(words))
    out = np.zeros(n_words(len(steps)), dtype=np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remaining, "CHUNK_BITS", 64 if few_at_once else 1 << 24)
        found.choose(words, out)
    bits = np.unpackbits(out.view(np.uint8), bitorder="little")[: len(steps)]
    assert bits.tolist() == [int(frames[step] in held) for step in steps]


@given(selections(), st.sets(st.integers(0, FRAMES - 1)), st.sets(st.integers(0, FRAMES - 1)))
def test_the_protocol_gives_every_frame_that_is_left_once(frames, gone, held):
    found, steps = made(frames, gone)
    share = assign(alone(), InMemory.of(alien=held), found)
    taken: list[int] = []
    while (task := share.take()) is not None:
        taken += task.tolist()
    assert sorted(taken) == steps
    assert share.counts["alien"] == sum(frames[step] in held for step in steps)
    assert sum(share.counts.values()) == len(steps)
