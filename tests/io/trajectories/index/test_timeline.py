"""Every kind of timeline tells what an array of all times does."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.io.trajectories.index import timeline
from himach.io.trajectories.index.timeline import BetweenTimeline, EvenTimeline, ListedTimeline, gaps, tolerance


def back(times: np.ndarray) -> int | None:
    found = np.flatnonzero(np.diff(times) < -tolerance(times[:-1]))
    return int(found[0]) + 1 if len(found) else None


def check(line, expected: np.ndarray) -> None:
    assert len(line) == len(expected)
    numbers = np.random.default_rng(0).permutation(len(expected))
    for one in (line, pickle.loads(pickle.dumps(line))):
        assert one.at(numbers).tobytes() == expected[numbers].tobytes()
        assert [one[number] for number in numbers.tolist()] == expected[numbers].tolist()
    assert line.back() == back(expected)


TIMES = st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=50).map(lambda some: np.array(some, float))


@pytest.fixture(params=[2, 1 << 16], autouse=True)
def at_once(request, monkeypatch):
    monkeypatch.setattr(timeline, "CHUNK_FRAMES", request.param)


@given(st.integers(1, 60), st.floats(-10, 10), st.floats(-10, 10), st.floats(-1000, 1000))
def test_even(n, step, shift, offset):
    check(EvenTimeline(n, step, shift, offset), (np.arange(n, dtype=np.float64) + shift) * step + offset)


@given(TIMES)
def test_listed(times):
    check(ListedTimeline(times), times)


def test_between():
    check(BetweenTimeline(9, [2, 4, 8], [1.0, 5.0, 7.0]), np.interp(np.arange(9), [2, 4, 8], [1.0, 5.0, 7.0]))
    assert BetweenTimeline(9, [2, 4, 8], [1.0, 0.0, 7.0]).back() == 3


@given(st.integers(2, 400), st.sampled_from([0.1, 1.0, 2.5]), st.integers(1, 7), st.booleans(), st.booleans())
def test_gaps(n, dt, stride, turned, bent):
    times = np.float32(np.arange(n) * dt).astype(np.float64)
    if bent:
        times[n // 2 :] += 5 * dt
    frames = range(n)[:: -stride if turned else stride]
    if len(frames) < 2:
        return
    chosen = times[list(frames)]
    between = np.diff(chosen)
    mean = (chosen[-1] - chosen[0]) / (len(chosen) - 1)
    even = not np.any(np.abs(between - mean) > 2 * tolerance(float(np.abs(chosen).max())))
    found, told, equal, largest = gaps(ListedTimeline(times), frames)
    assert told == even
    if even:
        assert equal == bool(np.all(between == between[0]))
        assert found == (between[0] if equal else mean)
        assert largest == np.abs(chosen).max()


def test_gaps_of_a_billion_even_frames_are_known_at_once():
    frames = range(0, 10**9, 10)
    assert gaps(EvenTimeline(10**9, 1.0, 1.0), frames)[:3] == (10.0, True, True)
    mean, even, _, _ = gaps(EvenTimeline(10**9, 0.1), frames)
    assert even
    assert mean == pytest.approx(1.0)
