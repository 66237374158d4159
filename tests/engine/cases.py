"""Analyses and checks that the tests at one and at many ranks share."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import himach
from himach.engine import mapping, stages, stamps
from himach.engine.merging import merge, presence
from himach.engine.shuffle import exchange, waves

SCALARS = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    st.integers(-(2**63) - 2, -(2**63) + 2),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.text("\0\x01\xff", max_size=3),
    st.binary(max_size=4),
    st.none(),
)
KEYS = st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=5)
FEW_KEYS = st.sampled_from([0, 1, 1.0, -0.0, 0.0, "1", b"1", None, (), (0,), (0, 1), (0, 1.0), ("K", 5), 2**64])
VALUES = st.one_of(
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.none(),
    st.booleans(),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=1), st.floats(), max_size=2),
    st.tuples(st.integers(), st.lists(st.none(), max_size=1)),
    st.sampled_from([np.float32(0.1), np.int8(3), np.arange(3), np.zeros((2, 0)), np.array(["a"], dtype=object)]),
    st.sampled_from([np.array([(1, 2.0)], dtype="i4,f8")[0], np.full(4000, 0.5), {1, 2}, 1j]),
)


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
            keys = ["K", b"K", None, 1.5, 1, -0.5, 2**70, ("K", 1), ("K", 1.5), (0, 1), (), ((1,), "x\0y"), np.int8(1)]
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


class Tally(himach.Analysis):
    def combine(self, key: Any, series: Any) -> Any:
        return sum(1 if value is None else value for _, value in series)

    def reduce(self, key: Any, series: Any) -> Any:
        assert len(series) == 1
        return series.values[0], int(series.frames[0])


class Tallied(Everything):
    then = Tally

    def reduce(self, key: Any, series: Any) -> Any:
        yield len(series), 1
        yield himach.Pairs([len(series)])


class Second(himach.Analysis):
    def map(self, frame: Any) -> Any:
        raise AssertionError("only reduce() of a later stage is called")

    def reduce(self, key: Any, series: Any) -> Any:
        if self.then is None:
            return (series.frames, series.times, series.boxes, series.values)
        return [(len(series), (key, series.values))]


class First(Everything):
    def reduce(self, key: Any, series: Any) -> Any:
        yield type(key).__name__, (key, len(series))
        yield himach.Pairs(series.frames % 4, series.times)
        yield 1, key


class Many(Everything):
    def reduce_many(self, keys: Any, series: Any) -> Any:
        edges = series.offsets.tolist()
        columns = series.frames, series.steps, series.times, series.boxes, series.values
        assert len(keys) == len(series) == len(edges) - 1 == len(list(series))
        assert edges[-1] == len(columns[0])
        for i, key in enumerate(keys if isinstance(keys, list) else keys.tolist()):
            frames, steps, times, boxes, values = (
                None if column is None else column[edges[i] : edges[i + 1]] for column in columns
            )
            if boxes is not None and np.isnan(boxes[:, 0]).all():
                boxes = None
            yield {
                "key": tuple(key) if isinstance(key, list) else key,
                "frames": frames,
                "steps": steps,
                "times": times,
                "boxes": boxes,
                "values": series[i].values if isinstance(values, list) else values,
                "pairs": list(series[i]),
            }


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


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Let few pairs make many chunks, waves, rounds and spans."""
    patch.setattr(mapping, "CHUNK_BYTES", 300)
    patch.setattr(stages, "CHUNK_BYTES", 300)
    patch.setattr(exchange, "MAX_PARTNERS", 2)
    patch.setattr(waves, "WAVE_BYTES", 1 << 15)
    patch.setattr(waves, "SHARED_STAMP_FRAMES", 0)
    patch.setattr(stamps, "RANGE_ROWS", 7)
    patch.setattr(merge, "MAX_PAIRS_AT_A_TIME", 4)
    patch.setattr(presence, "EXPANDED_FRAMES", 3)
