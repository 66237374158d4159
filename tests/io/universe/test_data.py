"""What files say of frames beside positions, velocities and forces: `frame.data`."""

from __future__ import annotations

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests import datafiles as data
from support.cache_data import make, make_dump

import himach
from himach.errors import AnalysisError

COLUMNS = {"format": "LAMMPSDUMP", "additional_columns": True}
#: name -> topology, trajectory, keywords
SAMPLES = {
    "XTC": (data.GRO, data.XTC, {}),
    "TRR": (data.TPR_xvf, data.TRR_xvf, {}),
    "DCD": (data.PSF, data.DCD, {}),
    "TRZ": (data.TRZ_psf, data.TRZ, {}),
    "LAMMPSDUMP": (data.LAMMPSdata_additional_columns, data.LAMMPSDUMP_additional_columns, COLUMNS),
    "MOL2": (data.mol2_molecules, data.mol2_molecules, {}),
    "NCDF": (data.PRMncdf, data.NCDF, {}),
}
N_FRAMES = 5


class Told(himach.Analysis):
    """What is told of each frame, in both places."""

    def setup(self, universe):
        self.first = repr(universe.trajectory.ts.data)

    def map(self, frame):
        ts = frame.universe.trajectory.ts
        yield "told", (frame.data, {**ts.data}, {**ts.copy().data}, {**frame.universe.atoms[:1].ts.data}, self.first)

    def reduce(self, key, series):
        return series.values

    def finish(self, results):
        return results["told"]


def run(topology, trajectory, keywords, analysis=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return himach.run(
            analysis or Told(), trajectory, topology, universe=keywords, progress=False, stop=N_FRAMES, **options
        )


def same(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value)


@pytest.mark.nightly(but=5)
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_is_what_mdanalysis_gives(name, cached, tmp_path):
    topology, trajectory, keywords = SAMPLES[name]
    cache = tmp_path / "store" if cached else "off"
    if cached:
        run(topology, trajectory, keywords, cache=cache)
    result = run(topology, trajectory, keywords, cache=cache)
    assert (result.record["bytes"]["cache"] > 0) == cached
    universe = mda.Universe(topology, trajectory, **keywords)
    for ts, (mine, *others, first) in zip(universe.trajectory[:N_FRAMES], result.outcome, strict=True):
        assert all(name in first for name in mine)
        expected = {name: value for name, value in ts.data.items() if name not in ("time", "dt", "time_offset")}
        same(mine, expected)
        for other in others:
            assert {"time", "dt"} <= other.keys()
            same({name: value for name, value in other.items() if name not in ("time", "dt")}, expected)
    assert mine or name == "NCDF"


@pytest.mark.filterwarnings("ignore")
def test_additional_columns_are_there():
    topology, trajectory, keywords = SAMPLES["LAMMPSDUMP"]
    (told, *_) = run(topology, trajectory, keywords, cache="off").outcome[0]
    assert told["q"].shape == (10,)
    (told, *_) = run(topology, trajectory, {**keywords, "additional_columns": ["p"]}, cache="off").outcome[0]
    assert {"p", "step"} == told.keys()


class Step(himach.Analysis):
    """The step of each frame."""

    def map(self, frame):
        yield "step", frame.data["step"]

    def reduce(self, key, series):
        return series.values


class Quiet(himach.Analysis):
    """What MDAnalysis's own code finds in the timestep."""

    def map(self, frame):
        yield "told", sorted(frame.universe.trajectory.ts.data)

    def reduce(self, key, series):
        return series.values[0]


@pytest.mark.filterwarnings("ignore")
def test_where_the_trajectory_is_away_it_is_refused(tmp_path):
    topology, trajectory = make_dump(tmp_path, N_FRAMES)
    there = run(topology, trajectory, {}, Step(), cache=tmp_path / "store").outcome
    assert list(there["result"][0]) == [0, 1, 4, 9, 16]
    trajectory.rename(tmp_path / "away")
    with pytest.raises(AnalysisError, match=r"Step reads frame\.data.*of frame 0.*md\.lammpsdump cannot be reached"):
        run(topology, trajectory, {}, Step(), cache=tmp_path / "store")
    assert run(topology, trajectory, {}, Quiet(), cache=tmp_path / "store").outcome["result"] == [["dt", "time"]]


class Spoils(himach.Analysis):
    """Changes what it is given."""

    def map(self, frame):
        frame.data["q"][:] = 7
        frame.data["more"] = 1
        yield "told", sorted(frame.data)

    def reduce(self, key, series):
        return series.values


@pytest.mark.filterwarnings("ignore")
def test_analyses_do_not_see_each_other_s_changes(tmp_path):
    topology, trajectory, keywords = SAMPLES["LAMMPSDUMP"]
    alone = run(topology, trajectory, keywords, cache="off").outcome
    for order in ([Spoils(), Told()], [Told(), Spoils()], [Spoils(), Spoils(), Told()]):
        together = run(topology, trajectory, keywords, order, cache="off").outcome
        same(together["Told"][0][0], alone[0][0])


@pytest.mark.filterwarnings("ignore")
def test_on_two_ranks(tmp_path):
    topology, trajectory = make(tmp_path, 12)
    one = run(topology, trajectory, {}, Step(), cache="off").outcome["result"]
    assert one == [list(range(N_FRAMES))]
    for _ in range(2):
        assert run(topology, trajectory, {}, Step(), cache=tmp_path / "store", ranks=2).outcome["result"] == one
