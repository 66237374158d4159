"""Runs that end when an interval is narrow enough."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from MDAnalysis import Universe, Writer
from support.commands import himach, same_files, start_himach, wait_until

import himach as package
from himach import uncertainty
from himach.examples import load, sample
from himach.io.trajectory.index.walk import read_index
from himach.planning.half_width import HalfWidth

TRAJECTORY, TOPOLOGY = sample("nanopore")
RDF = ["rdf", "-p", "a=name K", "-p", "b=name O OH2"]


class Growing:
    """A file to which frames of another are appended."""

    def __init__(self, whole, path) -> None:
        self.path = path
        self._whole, self._index, self._frames = whole.read_bytes(), read_index(str(whole), "TRR"), 0
        path.touch()

    def grow(self, frames: int) -> None:
        begin = self.path.stat().st_size
        self._frames = min(self._frames + frames, self._index.n_frames)
        with self.path.open("ab") as file:
            file.write(self._whole[begin : self._index.place(self._frames - 1)[1]])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """450 frames."""
    path = tmp_path_factory.mktemp("whole") / "whole.trr"
    universe = Universe(TOPOLOGY, TRAJECTORY)
    with Writer(str(path), len(universe.atoms)) as writer:
        for turn in range(3):
            for ts in universe.trajectory:
                ts.time += turn * 30.0
                writer.write(universe.atoms)
    return path


@pytest.fixture
def growing(whole, tmp_path):
    return Growing(whole, tmp_path / "growing.trr")


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_run_ends_when_its_intervals_are_narrow_enough(tmp_path, growing, ranks):
    seen = []

    def update(result):
        seen.append((result.record["frames"], result.record["uncertainty"]["rdf"]["half_widths"]["g"]))
        growing.grow(40)

    growing.grow(40)
    result = package.run(
        load("rdf")(a="name K", b="name O OH2"), growing.path, TOPOLOGY, every=40, idle=20, until="rdf.g<0.4",
        ranks=ranks, cache="off", on_update=update, out=tmp_path / "out", progress=False,
    )  # fmt: skip
    narrow = [width < 0.4 for _, width in seen[:-1]]  # the last is of what came until it was told to end
    assert narrow[-4:] == [False, True, True, True]
    assert not any(narrow[i : i + 3] == [True] * 3 for i in range(len(narrow) - 3))
    told = result.record["live"]
    assert (told["until"], told["half_width"]) == ("rdf.g<0.4", seen[-2][1])
    assert result.record["frames"] < 400
    stop = result.record["frames"]
    package.run(
        load("rdf")(a="name K", b="name O OH2"), growing.path, TOPOLOGY, stop=stop, cache="off", progress=False,
        out=tmp_path / "again",
    )  # fmt: skip
    same_files(tmp_path / "out", tmp_path / "again")


@pytest.mark.nightly
def test_by_the_command(tmp_path, growing):
    growing.grow(50)
    run = start_himach(
        "run", *RDF, "-t", growing.path, "-s", TOPOLOGY, "--follow", "--every", 50, "--cache", "off",
        "--until", "rdf.g<0.4", "--out", tmp_path / "out", "-n", 2,
    )  # fmt: skip
    record = tmp_path / "out" / "run.json"

    def goes_on(frames: int) -> bool:
        """Whether the run has looked at so many frames, or has ended."""
        there = record.exists() and json.loads(record.read_text())["frames"] == frames
        return there or run.poll() is not None

    try:
        for frames in range(50, 401, 50):  # it may end without those that came last
            assert wait_until(partial(goes_on, frames), 60)
            growing.grow(50)
        said = "".join(run.communicate(timeout=60))
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, said
    assert "himach: intervals of rdf.g are within ±0." in said
    told = json.loads(record.read_text())
    assert told["live"]["half_width"] < 0.4
    assert "g_low" in (tmp_path / "out" / "rdf.csv").read_text()


class Late(package.Analysis):
    """What does not change at first, in a table that has no rows at first."""

    def map(self, frame):
        yield 0, 2.0 if frame.number < 40 else 2.0 + frame.number % 2

    def reduce(self, key, series):
        return series.values

    def finish(self, results):
        values = np.array(results[0])
        some = values[40:]
        return {
            "c": package.Table({"n": package.Column(values, estimate=True)}),
            "late": package.Table({"k": package.Column(some, estimate=lambda level: uncertainty.count(some, level))}),
        }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("until", "least", "most"), [("c.n<0.2", 41, 450), ("late.k<9", 61, 99)], ids=["unchanged", "not there"]
)
def test_what_has_not_changed_or_is_not_there_yet_is_waited_for(growing, until, least, most):
    growing.grow(10)
    result = package.run(
        Late(), growing.path, TOPOLOGY, every=10, idle=20, until=until, cache="off", progress=False,
        on_update=lambda result: growing.grow(10),
    )  # fmt: skip
    assert least <= result.record["frames"] <= most


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--until", "rdf.g<0.4"], "say every how many frames (every)"),
        (["--until", "rdf.g", "--every", "9"], "such as 'rdf.g<0.02'"),
        (["--until", "rdf.g<-1", "--every", "9"], "such as 'rdf.g<0.02'"),
        (["--until", "rdf.g<0.4", "--every", "9", "--confidence", "off"], "confidence is 'off'"),
        (["--until", "rdf.h<0.4", "--every", "9"], "makes no such interval; it makes rdf.g"),
        (["--until", "rmsd.rmsd<0.4", "--every", "9", "-n", "2"], "makes no such interval; it makes rdf.g"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(words, told):
    done = himach("run", *RDF, "-t", TRAJECTORY, "-s", TOPOLOGY, "--follow", "--idle", 5, "--cache", "off", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mean_is_waited_for_as_a_curve_is():
    record = package.run(load("hydrogen-bonds")(), *sample("villin"), cache="off", progress=False).record["uncertainty"]
    mean = record["counts"]["means"]["bonds"]
    assert HalfWidth.of("counts.bonds<1").seen(record) == pytest.approx((mean["high"] - mean["low"]) / 2)
    assert np.isnan(HalfWidth.of("rmsd.rmsd < 1e-2").seen({"rmsd": {"half_widths": {"rmsd": None}}}))
