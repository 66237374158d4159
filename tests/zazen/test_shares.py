"""What a node has, what is left of a selection, and its tasks: beside sets and lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.ranks.communicator import alone
from himach.zazen import NOTHING, InMemory, assign, node_frames
from himach.zazen.claims import n_words
from himach.zazen.node_frames import MAX_TASK_FRAMES, Remaining, Tasks, frame_bitmaps

from .model import FRAMES, selections, take_all

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
    for cached, words in zip((native, alien), frame_bitmaps(InMemory(native, alien), frames), strict=True):
        assert words.shape == (-(-len(frames) // 64),)
        assert positions_of(words) == {p for p, frame in enumerate(frames) if frame in cached}


@pytest.mark.parametrize("start", [2**32 - 100, 2**33 + 5, 2**40])
def test_large_frame_numbers(start):
    cached = set(range(start - 50, start + 150, 2))
    for frames in (range(start, start + 200), range(start + 199, start - 1, -1), range(start - 90, start + 300, 7)):
        native, alien = frame_bitmaps(InMemory(cached), frames)
        assert positions_of(native) == {p for p, frame in enumerate(frames) if frame in cached}
        assert not alien.any()


def test_several_stores_mark_the_same_words():
    native, alien = np.zeros((2, 2), dtype=np.uint64)
    for store in (InMemory([1, 2], [70]), InMemory([2, 3], [71]), NOTHING):
        store.mark(range(100), native, alien)
    assert positions_of(native) == {1, 2, 3}
    assert positions_of(alien) == {70, 71}


def made(frames: range, gone: set[int]) -> tuple[Remaining, list[int]]:
    """Return what is left when frames are gone, and its steps."""
    left = np.array([number not in gone for number in frames], dtype=bool)
    return Remaining.from_mask(frames, left), np.flatnonzero(left).tolist()


@given(selections(), st.sets(st.integers(0, FRAMES - 1)), st.sets(st.integers(0, FRAMES - 1)), st.booleans())
def test_bits_are_chosen(frames, gone, cached, few_at_once):
    result, steps = made(frames, gone)
    words = np.zeros(n_words(len(frames)), dtype=np.uint64)
    InMemory(native=cached).mark(frames, words, np.zeros_like(words))
    out = np.zeros(n_words(len(steps)), dtype=np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_frames, "CHUNK_BITS", 64 if few_at_once else 1 << 24)
        result.choose(words, out)
    bits = np.unpackbits(out.view(np.uint8), bitorder="little")[: len(steps)]
    assert bits.tolist() == [int(frames[step] in cached) for step in steps]


@given(selections(), st.sets(st.integers(0, FRAMES - 1)), st.sets(st.integers(0, FRAMES - 1)))
def test_the_protocol_gives_every_frame_that_is_left_once(frames, gone, cached):
    result, steps = made(frames, gone)
    share = assign(alone(), InMemory(alien=cached), result)
    assert sorted(step for task in take_all(share) for step in task.tolist()) == steps
    assert share.counts["alien"] == sum(frames[step] in cached for step in steps)
    assert sum(share.counts.values()) == len(steps)


@given(st.integers(0, 200_000), st.integers(1, 130))
def test_tasks_follow_one_another(count, ranks):
    tasks = Tasks(count, ranks)
    bounds = [tasks.bounds(number) for number in range(len(tasks))]
    assert [start for start, _ in bounds] + [count] == [0] + [stop for _, stop in bounds]
    sizes = [stop - start for start, stop in bounds]
    assert all(1 <= size <= MAX_TASK_FRAMES for size in sizes)
    # The last tasks are small, so that no rank works long while the others wait.
    assert max(sizes[-ranks:], default=1) <= max(1, max(sizes, default=1) // 4)


@pytest.mark.parametrize("n, step", [(1, 1), (63, 1), (64, 1), (200_000, 1), (200_000, 3), (3_000_000, 1000)])
def test_a_share_is_taken_in_order(n, step):
    frames = range(5, n, step)
    share = assign(alone(), InMemory(frames[::2], frames[1::5]), frames)
    assert share.size == len(frames)
    assert [step for task in take_all(share) for step in task.tolist()] == list(range(len(frames)))
