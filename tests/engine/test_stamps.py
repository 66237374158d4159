"""Stamps in few bytes against plain tables, to the last bit, and what they take."""

import tracemalloc

import numpy as np
import pytest

from himach.engine.stamps import FrameTable, Stamps

N = 3000
STEPS = {
    "all": np.arange(N),
    "backwards": np.arange(N)[::-1].copy(),
    "tasks": np.concatenate([np.arange(start, start + 60) for start in range(0, 50 * N, 3000)])[:N],
    "at random": np.random.default_rng(0).permutation(10 * N)[:N],
    "far apart": np.random.default_rng(1).integers(0, 2**62, N),
    "the same": np.full(N, 7),
    "one": np.array([5]),
}
TIMES = {
    "a line": lambda steps: 2.5 * steps + 10,
    "a product": lambda steps: (3 + 2 * steps) * 0.1,
    "single precision": lambda steps: (steps * 0.02).astype(np.float32).astype(np.float64),
    "nearly a line": lambda steps: np.round(steps * 0.1, 3),
    "at random": lambda steps: np.random.default_rng(2).normal(0, 1e300, len(steps)),
    "none": lambda steps: np.full(len(steps), np.nan),
    "all kinds": lambda steps: np.resize([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e308, 1e308], len(steps)),
}


def boxes(kind, n):
    rng = np.random.default_rng(3)
    if kind == "none":
        return None
    made = rng.random((n, 6), dtype=np.float32)
    if kind == "few":
        made = rng.random((5, 6), dtype=np.float32)[np.sort(rng.integers(0, 5, n))]
    made[rng.random(n) < 0.1] = np.nan
    return made


def same(a, b):
    assert a.steps.tobytes() == b.steps.tobytes() and a.times.tobytes() == b.times.tobytes()
    if a.boxes is None or b.boxes is None:
        assert all(table.boxes is None or np.isnan(table.boxes).all() for table in (a, b))
    else:
        assert a.boxes.tobytes() == b.boxes.tobytes()
    assert (a.sources is None) == (b.sources is None)
    if a.sources is not None:
        assert a.sources.tolist() == b.sources.tolist()


@pytest.mark.parametrize("boxed", ["none", "few", "many"])
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES.keys())
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_every_bit_comes_back(steps, times, boxed):
    with np.errstate(all="ignore"):
        table = FrameTable(steps, times(steps), boxes(boxed, len(steps)))
    stamps = Stamps()
    stamps.append(table)
    same(stamps.table(), table)


@pytest.mark.parametrize("times", ["a line", "single precision"])
def test_usual_frames_take_less_than_three_bytes_each(times):
    n, task = 400_000, 512
    stamps, box = Stamps(), np.array([30, 31, 32, 90, 90, 90], dtype=np.float32)
    tracemalloc.start()
    try:
        for start in range(0, 4 * n, 4 * task):
            steps = np.arange(start, start + task)
            for step, time in zip(steps.tolist(), TIMES[times](steps).tolist(), strict=True):
                stamps.add(step, time, box, None)
        stamps.seal()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 3 * len(stamps)
