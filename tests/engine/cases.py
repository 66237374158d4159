"""Analyses and checks that the tests at one and at many ranks share."""

from __future__ import annotations

from typing import Any

import numpy as np

import himach
from himach.comm import Communicator
from himach.engine import Results

from .twin import canonical, made_up, run_engine, run_twin


class Everything(himach.Analysis):
    """Yields keys and values of many kinds; gives back all that a series has."""

    kinds: str = "abcdefgh"
    seed: int = 0
    most: int = 6

    def map(self, frame: Any) -> Any:
        rng = np.random.default_rng((self.seed, frame.number))
        for _ in range(int(rng.integers(0, self.most))):
            yield from self.items(str(rng.choice(list(self.kinds))), rng)

    def items(self, kind: str, rng: np.random.Generator) -> Any:
        n = int(rng.integers(0, 8))
        small = rng.integers(-3, 4, n)
        if kind == "a":
            yield himach.Pairs(small, rng.random(n))
        elif kind == "b":
            yield himach.Pairs(small)
        elif kind == "c":
            yield himach.Pairs(rng.integers(0, 2, (n, 2)), rng.random((n, 3), dtype=np.float32))
        elif kind == "d":
            yield int(rng.integers(-3, 4)), {"a": [float(rng.random())]}
        elif kind == "e":
            keys = ["K", b"K", None, 1.0, 1, -0.0, 2**70, ("K", 1), ("K", 1.0), (0, 1), (), ((1,), "x\0y"), np.int8(1)]
            yield keys[int(rng.integers(len(keys)))], float(rng.random())
        elif kind == "f":
            yield (1, int(rng.integers(0, 2))), rng.random(3)
        elif kind == "g":
            yield "big", rng.random(5000)
        else:
            yield himach.Pairs(small, rng.integers(0, 9, n).astype(np.int16))

    def reduce(self, key: Any, series: Any) -> Any:
        values = series.values
        return {
            "key": key,
            "frames": series.frames,
            "steps": series.steps,
            "times": series.times,
            "boxes": series.boxes,
            "values": values,
            "pairs": [(time, value) for time, value in series],
        }


class Count(himach.Analysis):
    """Counts keys, combined on the way."""

    def map(self, frame: Any) -> Any:
        rng = np.random.default_rng(frame.number)
        yield himach.Pairs(rng.integers(0, 20, 30))
        yield ("frames", frame.number % 3), 1
        yield himach.Pairs(rng.integers(0, 5, (3, 2)), np.ones(3, np.int64))

    def combine(self, key: Any, series: Any) -> Any:
        values = series.values
        return (int(series.frames[0]), len(series) if values is None else sum(self.size(value) for value in values))

    @staticmethod
    def size(value: Any) -> int:
        return value[1] if isinstance(value, tuple) else int(value)

    def reduce(self, key: Any, series: Any) -> Any:
        assert len(series) == 1
        (value,) = series.values
        return (value, int(series.frames[0]), int(series.steps[0]))


class CountMore(Count):
    """Combines tuples and presences alike."""

    def combine(self, key: Any, series: Any) -> Any:
        first = min(
            value[0] if isinstance(value, tuple) else int(frame)
            for frame, (_, value) in zip(series.frames, series, strict=True)
        )
        return (first, sum(1 if value is None else self.size(value) for _, value in series))


class Second(himach.Analysis):
    """What a first stage yields, all of it."""

    def map(self, frame: Any) -> Any:
        raise AssertionError("only reduce() of a later stage is called")

    def reduce(self, key: Any, series: Any) -> Any:
        if self.then is None:
            return (series.frames, series.times, series.boxes, series.values)
        return [(len(series), (key, series.values))]


class First(Everything):
    """Everything, with a second stage."""

    def reduce(self, key: Any, series: Any) -> Any:
        yield type(key).__name__, (key, len(series))
        yield himach.Pairs(series.frames % 4, series.times)
        yield 1, key


class Third(Second):
    """The end of a chain of three."""


class Middle(Second):
    """The middle of a chain of three."""

    then = Third


def chain_of(analysis: himach.Analysis) -> list[himach.Analysis]:
    chain = [analysis]
    while (following := chain[-1].next_stage()) is not None:
        chain.append(following)
    return chain


def check(
    comm: Communicator | None, chain: list[Any], frames: range, boxes: str = "all", seed: int = 0, largest: int = 5
) -> Results | None:
    """Run the engine and its twin and compare to the last bit on rank 0."""
    raws = made_up(list(frames), boxes)
    passed = run_engine(comm, [chain], frames, raws, seed, largest)
    if passed.results is None:
        return None
    (results,) = passed.results
    expected = run_twin(chain, frames, raws)
    assert canonical(list(results)) == canonical([key for key, _ in expected])
    for (key, result), (_, wanted) in zip(results.items(), expected, strict=True):
        assert canonical(result) == canonical(wanted), key
    return results
