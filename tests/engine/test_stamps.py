"""Stamps in few bytes against plain tables, to the last bit, and what they take."""

import tracemalloc

import numpy as np
import pytest

from himach.engine import stamps as engine_stamps
from himach.engine.pairs.block import objects
from himach.engine.pairs.keys import encode
from himach.engine.stamps import Frames, FrameTable, Stamps

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


@pytest.mark.parametrize("rows", [1, 7, 1 << 16])
@pytest.mark.parametrize("boxed", ["none", "few", "many"])
@pytest.mark.parametrize("sourced", [False, True])
def test_rows_that_were_added_one_by_one(monkeypatch, rows, boxed, sourced):
    monkeypatch.setattr(engine_stamps, "RANGE_ROWS", rows)
    n = 200
    steps, box = STEPS["tasks"][:n], boxes(boxed, n)
    keys = [encode(("key", int(step) % 7, "x" * (int(step) % 5))) for step in steps] if sourced else [None] * n
    table = FrameTable(steps, TIMES["nearly a line"](steps), box, objects(keys) if sourced else None)
    stamps = Stamps()
    for i in range(n):
        absent = box is None or np.isnan(box[i, 0])
        row = stamps.add(int(steps[i]), float(table.times[i]), None if absent else box[i], keys[i])
        assert row == i and len(stamps) == i + 1
        if i == 120:
            stamps.seal()
    assert stamps.boxed == (boxed != "none")
    same(stamps.table(), table)
    same(stamps.table(33, 101), table.chosen(np.arange(33, 101)))
    rows = np.flatnonzero(np.random.default_rng(4).random(n) < 0.2)
    same(stamps.chosen(rows), table.chosen(rows))
    stamps.append(table)
    same(stamps.table(n), table)
    assert len(stamps.table(n, n)) == 0


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


@pytest.mark.parametrize("forward", [True, False])
def test_frames_of_ranks_in_one_order(forward):
    rng = np.random.default_rng(6)
    steps = rng.permutation(90)
    tables = [FrameTable(part, part * 0.5, None) for part in np.split(steps, [10, 10, 60])]
    frames = Frames.joined(tables, forward)
    assert frames.table.steps.tolist() == (list(range(90)) if forward else list(range(90))[::-1])
    for table, places in zip(tables, frames.places, strict=True):
        assert (frames.table.steps[places] == table.steps).all()
        assert (frames.table.times[places] == table.times).all()


def test_frames_of_a_step_are_in_the_order_of_their_sources():
    rng = np.random.default_rng(5)
    parts = [rng.integers(-3, 3, int(rng.integers(4))).tolist() for _ in range(90)]
    keys = [encode(("x" * int(rng.integers(60)), *subset)) for subset in parts]
    steps = rng.integers(0, 3, len(keys))
    table = FrameTable(steps, steps * 0.5, None, objects(keys))
    frames = Frames.joined([table.chosen(slice(40)), table.chosen(slice(40, None))], forward=True)
    expected = sorted(range(len(keys)), key=lambda row: (steps[row], keys[row]))
    assert np.argsort(np.concatenate(frames.places)).tolist() == expected
