"""Random emissions against the engine's twin, on ranks that are threads.

In each example four analyses share a pass: plain, many keys at a time, combined, and in two stages.
``HIMACH_TEST_EXAMPLES`` asks for more than the quick few.
"""

import os
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.threads import run_ranks

import himach

from .cases import FEW_KEYS, VALUES, Everything, Many, Second, chain_of, make_small
from .test_many_ranks import nodes_of, uneven
from .twin import canonical, check_twin, run_engine

FRAMES = 90
EXTREMES = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**17 - 1, 2**17, 2**17 + 1, 2**32, 2**63 - 2, 2**63 - 1])
DTYPES = ["f8", "f4", "i2", "?", "c16", "i4,f8", "U3", ">f8", "M8[us]", "S4", "i1"]


@dataclass(frozen=True)
class Emitter:
    """Yields pairs in some of `length` frames.

    `keys` says which: few, many, far-off ones, tuples of some integers. `distinct`: no key twice in a frame.
    `layout` is presence, "one by one", or the dtype and shape of values.
    """

    keys: str
    distinct: bool
    layout: Any
    rows: int
    first: int
    length: int
    chance: float
    seed: int
    single: tuple[Any, Any]

    def items(self, number: int) -> Any:
        rng = np.random.default_rng((self.seed, number))
        if not self.first <= number < self.first + self.length or rng.random() >= self.chance:
            return
        keys = self.some_keys(rng)
        if self.layout == "one by one":
            yield self.single
            for key in keys[:3].tolist():
                yield (key if isinstance(key, int) else tuple(key)), self.single[1]
        elif self.layout == "presence":
            yield himach.Pairs(keys)
        else:
            yield himach.Pairs(keys, self.some_values(rng, len(keys)))

    def some_keys(self, rng: np.random.Generator) -> Any:
        chosen = {
            "few": np.arange(4),
            "many": np.arange(300),
            "far": EXTREMES,
            "random": rng.integers(-(2**62), 2**62, 30),
            "pairs": np.argwhere(np.ones((3, 4))),
            "triples": EXTREMES[np.argwhere(np.ones((2, 2, 2)))],
        }[self.keys]
        n = min(self.rows, len(chosen)) if self.distinct else self.rows
        return chosen[rng.permutation(len(chosen))[:n] if self.distinct else rng.integers(0, len(chosen), n)]

    def some_values(self, rng: np.random.Generator, n: int) -> Any:
        dtype, shape = self.layout
        kind = np.dtype(dtype)
        if kind.kind == "f":
            values = np.where(rng.random((n, *shape)) < 0.1, np.nan, rng.normal(size=(n, *shape)))
            return values.astype(kind)
        return rng.integers(0, 3, (n, *shape)).astype(kind)


EMITTERS = st.builds(
    Emitter,
    st.sampled_from(["few", "many", "far", "random", "pairs", "triples"]),
    st.booleans(),
    st.one_of(
        st.just("presence"),
        st.just("one by one"),
        st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (), (3,), (2, 2), (0,)])),
    ),
    st.integers(0, 60),
    st.integers(0, FRAMES),
    st.integers(1, FRAMES),
    st.sampled_from([0.02, 0.5, 1]),
    st.integers(0, 99),
    st.tuples(FEW_KEYS, VALUES),
)


class Emitted(Everything):
    """Yields what its emitters yield; gives back all that a series has."""

    def __init__(self, emitters: Any) -> None:
        super().__init__()
        self.emitters = emitters

    def map(self, frame: Any) -> Any:
        for emitter in self.emitters:
            yield from emitter.items(frame.number)


class EmittedMany(Emitted):
    reduce_many = Many.reduce_many


class Folded(tuple):
    """What combine() makes of many values: first frame, count, checksum."""

    __slots__ = ()


class Combined(Emitted):
    """Reduced to a checksum, combined on the way."""

    def combine(self, key: Any, series: Any) -> Any:
        parts = []
        for frame, (_, value) in zip(series.frames.tolist(), series, strict=True):
            folded = isinstance(value, Folded)
            parts.append(value if folded else (frame, 1, crc32(repr(canonical(value)).encode())))
        firsts, counts, sums = zip(*parts, strict=True)
        return Folded((min(firsts), sum(counts), sum(sums)))

    def reduce(self, key: Any, series: Any) -> Any:
        (_, value), *more = series
        folded = value if isinstance(value, Folded) and not more else Combined.combine(self, key, series)
        return tuple(folded), int(series.frames[0])


class Staged(Emitted):
    """The first of two stages."""

    then = Second

    def reduce(self, key: Any, series: Any) -> Any:
        yield type(key).__name__, (key, len(series))
        yield himach.Pairs(series.frames % 4, series.times)
        yield himach.Pairs(np.unique(series.frames))


KINDS = (Emitted, EmittedMany, Combined, Staged)


@settings(
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("HIMACH_TEST_EXAMPLES", "8")),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(EMITTERS, min_size=1, max_size=5).map(tuple),
    st.sampled_from([slice(None), slice(None, None, -1), slice(5, 80, 3), slice(40, 41), slice(70, 2, -7)]),
    st.sampled_from(["large", "small", "spilled"]),
    st.integers(1, 4),
)
def test_any_emission(emitters, selected, sizes, ranks):
    frames, raws = range(FRAMES)[selected], uneven(range(FRAMES))
    memory = 1 << 12 if sizes == "spilled" else None

    def chains():
        return [chain_of(kind(emitters)) for kind in KINDS]

    with pytest.MonkeyPatch.context() as patch:
        if sizes != "large":
            make_small(patch)
        passed, *_ = run_ranks(
            nodes_of(ranks), lambda world: run_engine(world, chains(), frames, raws, ranks, memory=memory)
        )
    for results, chain in zip(passed.results, chains(), strict=True):
        check_twin(results.items(), chain, frames, raws)
