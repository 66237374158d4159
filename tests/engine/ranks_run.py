"""The shuffle through `himach.run`, at any number of ranks: random emissions against the engine's twin.

Every rank runs this file and draws the same examples; rank 0 compares. In each example four analyses share a pass:
plain, many keys at a time, combined, and in two stages. ``HIMACH_TEST_EXAMPLES`` asks for more than the quick few.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import himach
import himach.runner.options
from himach.frame import RawFrame
from himach.ranks.communicator import alone
from himach.ranks.mpi import connect
from himach.ranks.process_exit import promised_rank, under_launcher

from .cases import FEW_KEYS, VALUES, Many, chain_of, make_small
from .twin import canonical, check_twin

comm = connect().comm if under_launcher() else alone().comm
FRAMES, ATOMS = 90, 12
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


class Emitted(himach.Analysis):
    """Yields what its emitters yield; gives back all that a series has."""

    def __init__(self, emitters: Any) -> None:
        super().__init__()
        self.emitters = emitters

    def map(self, frame: Any) -> Any:
        for emitter in self.emitters:
            yield from emitter.items(frame.number)

    def reduce(self, key: Any, series: Any) -> Any:
        return (series.frames, series.steps, series.times, series.boxes, series.values)

    def finish(self, results: Any) -> Any:
        return list(results.items())


class EmittedMany(Emitted):
    """Reduced many keys at a time."""

    def reduce(self, key: Any, series: Any) -> Any:
        return Many.reduce(self, key, series)

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


class Gathered(himach.Analysis):
    """The second of two stages."""

    def reduce(self, key: Any, series: Any) -> Any:
        return (series.frames, series.times, series.boxes, series.values)

    def finish(self, results: Any) -> Any:
        return list(results.items())


class Staged(Emitted):
    """The first of two stages."""

    then = Gathered
    finish = himach.Analysis.finish

    def reduce(self, key: Any, series: Any) -> Any:
        yield type(key).__name__, (key, len(series))
        yield himach.Pairs(series.frames % 4, series.times)
        yield himach.Pairs(np.unique(series.frames))


class Made:
    """Paths of trajectory and topology, and the frames as MDAnalysis reads them."""

    def __init__(self, trajectory: Path, topology: Path) -> None:
        self.paths = trajectory, topology
        self.raws = {}
        for ts in mda.Universe(str(topology), str(trajectory)).trajectory:
            box = None if ts.dimensions is None else ts.dimensions.copy()
            self.raws[ts.frame] = RawFrame(ts.frame, ts.time, ts.positions.copy(), box)


@pytest.fixture(scope="module")
def made():
    """Let rank 0 make a trajectory for all."""
    with tempfile.TemporaryDirectory() as name:
        yield Made(*comm.bcast(write(Path(name)) if comm.rank == 0 else None))
        comm.barrier()


def write(folder: Path) -> tuple[Path, Path]:
    universe = mda.Universe.empty(ATOMS, trajectory=True)
    universe.add_TopologyAttr("names", ["C"] * ATOMS)
    rng = np.random.default_rng(3)
    with mda.Writer(str(folder / "md.xtc"), ATOMS) as writer:
        for number in range(FRAMES):
            universe.atoms.positions = rng.normal(0, 10, (ATOMS, 3))
            universe.trajectory.ts.dimensions = None if number % 3 else [30 + number, 31, 32, 90, 90, 90]
            universe.trajectory.ts.time = 2.0 * number
            writer.write(universe.atoms)
    universe.atoms.write(str(folder / "top.gro"))
    return folder / "md.xtc", folder / "top.gro"


@settings(
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("HIMACH_TEST_EXAMPLES", "5")),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(EMITTERS, min_size=1, max_size=5),
    st.sampled_from([slice(None), slice(None, None, -1), slice(5, 80, 3), slice(40, 41), slice(70, 2, -7)]),
    st.sampled_from(["large", "small", "spilled"]),
)
def test_any_emission_through_run(made, emitters, selected, sizes):
    # The first rank's example for all: Hypothesis also draws constants that it finds in whatever modules a rank has.
    emitters, selected, sizes = comm.bcast((emitters, selected, sizes))
    frames = range(FRAMES)[selected]
    analyses = [kind(tuple(emitters)) for kind in (Emitted, EmittedMany, Combined, Staged)]
    with pytest.MonkeyPatch.context() as patch:
        if sizes != "large":
            make_small(patch)
        patch.setattr(himach.runner.options, "MIN_LIMIT_BYTES", 1)
        result = himach.run(
            analyses,
            *made.paths,
            **{name: getattr(selected, name) for name in ("start", "stop", "step")},
            **{"memory": 1 << 12 if sizes == "spilled" else None, "cache": "off", "progress": False},
        )
    if promised_rank() != 0:
        return
    for analysis, outcome in zip(analyses, result.outcome.values(), strict=True):
        check_twin(outcome, chain_of(analysis), frames, made.raws)
