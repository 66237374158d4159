"""Answers that were known before, through the command line.

Those for villin and the channel are in the README of the shared data, those for AdK are what MDAnalysis and
waterdynamics find.
"""

from __future__ import annotations

import csv
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support.commands import himach
from waterdynamics import SurvivalProbability

from himach.examples import sample

pytestmark = pytest.mark.slow

CHANNEL = ["-p", "top=index 110 246 382 518", "-p", "bottom=index 59 195 331 467", "-p", "radius=2.5"]


@pytest.fixture
def tables(tmp_path):
    """Return a function that runs an analysis and gives the tables that it left: name -> column -> list of text."""

    def run(
        analysis: str, trajectory: str | Path, topology: str | Path, *words: str
    ) -> dict[str, dict[str, list[str]]]:
        out = tmp_path / "out"
        data = ["--trajectory", trajectory, "--topology", topology]
        done = himach("run", analysis, *data, *words, "--out", out, "--quiet", timeout=200)
        assert done.returncode == 0, done.stderr
        return {path.stem: read_columns(path) for path in out.glob("*.csv")}

    return run


def read_columns(path: Path) -> dict[str, list[str]]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def numbers(column: list[str]) -> np.ndarray:
    return np.array(column, dtype=float)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("intermittency", "expected"),
    [(0, [1, 0.38664, 0.18483, 0.10417, 0.06476, 0.04714]), (2, [1, 0.56154, 0.38170, 0.26235, 0.17741, 0.12370])],
)
def test_water_residence_at_adk(tables, intermittency, expected):
    words = ["-p", "water=name OW", "-p", "cutoff=4", "-p", "tau_max=5", "-p", f"intermittency={intermittency}"]
    survival = tables("water-residence", XTC, GRO, *words)["survival"]
    assert list(survival) == ["tau_ps", "survival", "survival_low", "survival_high"]
    np.testing.assert_allclose(numbers(survival["survival"]), expected, rtol=0, atol=5e-6)
    np.testing.assert_allclose(numbers(survival["tau_ps"]), np.arange(6) * 100, rtol=1e-6)

    peer = SurvivalProbability(MDAnalysis.Universe(GRO, XTC), "name OW and around 4 protein")
    peer.run(tau_max=5, intermittency=intermittency)
    np.testing.assert_allclose(numbers(survival["survival"]), peer.sp_timeseries, rtol=1e-12)


def test_water_residence_at_villin(tables, shared):
    words = ["-p", "water=resname HOH and name O", "-p", "cutoff=3.5", "-p", "tau_max=10"]
    survival = tables("water-residence", *shared("villin"), *words)["survival"]
    expected = [1, 0.89559, 0.82216, 0.76606, 0.72030, 0.68191, 0.64863, 0.61950, 0.59390, 0.57098, 0.55021]
    np.testing.assert_allclose(numbers(survival["survival"]), expected, rtol=0, atol=5e-6)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("data", ["sample", "shared"])
@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("pattern", {("544", "up"): 3, ("545", "up"): 1, ("545", "down"): 3}),
        # One way down begins 45.6 Å above the filter's middle in a box of 87 Å: it may have come through the boundary.
        ("bulk-to-bulk", {("544", "up"): 3, ("545", "up"): 1, ("545", "down"): 2}),
    ],
)
def test_ions_through_the_channel(tables, shared, data, rule, events):
    trajectory, topology = sample("kcsa") if data == "sample" else shared("kcsa2pot")
    found = tables("ion-permeation", trajectory, topology, *CHANNEL, "-p", f"rule={rule}")
    assert list(found["events"]) == ["ion", "direction", "entered_ps", "left_ps"]
    passages = list(zip(found["events"]["ion"], found["events"]["direction"], strict=True))
    assert {passage: passages.count(passage) for passage in passages} == events
    ups = sum(count for (_, direction), count in events.items() if direction == "up")
    counts = {name: found["counts"][name] for name in ("direction", "events")}
    assert counts == {"direction": ["up", "down"], "events": [str(ups), str(sum(events.values()) - ups)]}
    assert (numbers(found["events"]["entered_ps"]) < numbers(found["events"]["left_ps"])).all()


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("ions", "expected"), [("name K", ["5", "0"]), ("name CL", ["0", "4"])])
def test_ions_through_the_nanopore(tables, shared, ions, expected):
    words = ["-p", f"ions={ions}", "-p", "top=resname GRA and prop z > 26", "-p", "bottom=resname GRA and prop z < 20"]
    assert tables("ion-permeation", *shared("nanopore"), *words)["counts"]["events"] == expected


def test_rmsd_of_adk(tables):
    found = tables("rmsd", DCD, PSF, "-p", "selection=name CA")["rmsd"]
    peer = rms.RMSD(MDAnalysis.Universe(PSF, DCD), select="name CA").run().results.rmsd
    assert list(found) == ["time_ps", "rmsd"]
    assert len(found["rmsd"]) == 98
    np.testing.assert_allclose(numbers(found["rmsd"]), peer[:, 2], rtol=0, atol=1e-4)
    np.testing.assert_allclose(numbers(found["time_ps"]), peer[:, 1], rtol=1e-6)
