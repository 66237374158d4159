"""The pass against its twin on many ranks, which are threads; with uneven stamps, many shards and little memory."""

import numpy as np
import pytest
from support.threads import run_ranks

import himach
from himach.engine import stamps
from himach.engine.merging import merge, merge_input
from himach.engine.pairs import block
from himach.engine.shuffle import waves
from himach.errors import AnalysisError
from himach.frame import RawFrame

from .cases import Everything, First, Many, Middle, Second, Third, make_small
from .twin import check_twin, made_up, run_engine

POSITIONS = np.zeros((1, 3), dtype=np.float32)
TIMES = [0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, 1e308, -1e308, 0.1, float(np.float32(0.1))]


def uneven(numbers, seed=0):
    """Return frames whose times follow no rule, with boxes that come, stay and go."""
    rng = np.random.default_rng(seed)
    boxes = [None, *np.round(rng.random((4, 6)) * 30).astype(np.float32)]
    raws, box = {}, None
    for number in range(max(numbers, default=0) + 1):
        if rng.random() < 0.2:
            box = boxes[int(rng.integers(len(boxes)))]
        kind = number // 20 % 4
        time = [TIMES[number % len(TIMES)], 0.1 * number, float(np.float32(0.02 * number)), rng.normal()][kind]
        raws[number] = RawFrame(number, time, POSITIONS, None if box is None else box.copy())
    return raws


def nodes_of(size):
    return ["bac"[rank % 7 % 3] for rank in range(size)]


def passed_on(size, chain, frames, raws, memory=None, seed=0, largest=5):
    """Run chains that `chain` makes on many ranks of three nodes; return the pass and its results."""
    passed, *rest = run_ranks(
        nodes_of(size), lambda world: run_engine(world, [chain()], frames, raws, seed, largest, memory)
    )
    assert all(other.results is None for other in rest)
    (results,) = passed.results
    return passed, results


def check(size, chain, frames, raws, *arguments, **options):
    passed, results = passed_on(size, chain, frames, raws, *arguments, **options)
    check_twin(results.items(), chain(), frames, raws)
    return passed


CHAINS = {
    "one stage": lambda: [Everything(seed=3)],
    "many keys": lambda: [Many(seed=4)],
    "two stages": lambda: [First(seed=6), Second()],
    "three stages": lambda: [First(seed=7), Middle(), Third()],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
@pytest.mark.parametrize("memory", [None, 1 << 13], ids=["memory", "disk"])
def test_more_ranks_and_shards_than_usual(monkeypatch, chain, memory):
    make_small(monkeypatch)
    monkeypatch.setattr(block, "OF_RANK", 100)
    frames = range(60)
    passed = check(17, chain, frames, uneven(frames, 1), memory)
    assert (passed.spilled > 0) == (memory is not None)


class Sparse(himach.Analysis):
    def map(self, frame):
        yield himach.Pairs(np.array([frame.number * 7919 % 30, 100 + frame.number % 11]))

    def reduce(self, key, series):
        return series.frames, series.times, series.boxes, series.values


@pytest.mark.parametrize("frames", [range(20_000), range(39_999, -1, -2)], ids=str)
@pytest.mark.parametrize("memory", [None, 1 << 15], ids=["memory", "disk"])
def test_frames_of_few_pairs(monkeypatch, frames, memory):
    monkeypatch.setattr(waves, "SHARED_STAMP_FRAMES", 0)
    monkeypatch.setattr(waves, "WAVE_BYTES", 1 << 16)
    check(3, lambda: [Sparse()], frames, uneven(frames, 2), memory, seed=2, largest=512)


class Boxed(himach.Analysis):
    """Tells of each key whether the series of the keys that came with it have boxes."""

    def map(self, frame):
        yield himach.Pairs([frame.number], [1.0])

    def reduce_many(self, keys, series):
        return [series.boxes is not None] * len(keys)


@pytest.mark.parametrize("known", [0, 1 << 18], ids=["travelling", "known"])
def test_boxes_of_many_keys_do_not_depend_on_what_comes_together(monkeypatch, known):
    monkeypatch.setattr(waves, "SHARED_STAMP_FRAMES", known)
    monkeypatch.setattr(waves, "WAVE_BYTES", 1 << 12)
    monkeypatch.setattr(stamps, "RANGE_ROWS", 7)
    monkeypatch.setattr(merge, "MAX_PAIRS_AT_A_TIME", 1)
    frames, box = range(600), np.array([1, 2, 3, 90, 90, 90], dtype=np.float32)
    raws = {number: RawFrame(number, 1.0 * number, POSITIONS, box if number == 300 else None) for number in frames}
    _, result = passed_on(2, lambda: [Boxed()], frames, raws)
    assert list(result.values()) == [True] * len(frames)


@pytest.mark.parametrize("mixed", [False, True], ids=["one layout", "two layouts"])
def test_more_pairs_than_rows_can_be_numbered_are_refused(mixed, monkeypatch):
    class Often(himach.Analysis):
        def map(self, frame):
            yield himach.Pairs([1], np.ones(1))
            if mixed:
                yield himach.Pairs([1], np.ones(1, dtype=np.float32))

        def reduce(self, key, series):
            return len(series)

    monkeypatch.setattr(merge_input, "MAX_PAIRS", 10)
    with pytest.raises(AnalysisError, match=r"have \d\d pairs, and at most 10 .* under more keys"):
        run_engine(None, [[Often()]], range(12), made_up(range(12)))
