"""Live runs: until, and between updates."""

import os
from dataclasses import replace

import numpy as np
import pytest
from MDAnalysis import Universe, Writer
from support.commands import himach, same_files
from support.threads import on_threads

import himach as package
from himach import uncertainty
from himach.examples import load, sample
from himach.io.trajectories.xdr_index import read_index
from himach.planning.half_width import HalfWidth
from himach.ranks.communicator import alone
from himach.runner.live.scratch_pairs import LOCK, pairs_between

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
    counted = []

    def update(result):
        counted.append((result.record["frames"], result.record["uncertainty"]["rdf"]["half_widths"]["g"]))
        growing.grow(40)

    growing.grow(40)
    result = package.follow(
        load("rdf")(a="name K", b="name O OH2"), growing.path, TOPOLOGY, every=40, idle=20, until="rdf.g<0.4",
        ranks=ranks, cache="off", on_update=update, out=tmp_path / "out", progress=False,
    )  # fmt: skip
    narrow = [width < 0.4 for _, width in counted[:-1]]  # the last is of what came until it was told to end
    assert narrow[-4:] == [False, True, True, True]
    assert not any(narrow[i : i + 3] == [True] * 3 for i in range(len(narrow) - 3))
    details = result.record["live"]
    assert (details["until"], details["half_width"]) == ("rdf.g<0.4", counted[-2][1])
    assert result.record["frames"] < 400
    stop = result.record["frames"]
    package.run(
        load("rdf")(a="name K", b="name O OH2"), growing.path, TOPOLOGY, stop=stop, cache="off", progress=False,
        out=tmp_path / "again",
    )  # fmt: skip
    same_files(tmp_path / "out", tmp_path / "again")


class Late(package.Analysis):
    """What does not change at first, in a table that has no rows at first."""

    def map(self, frame):
        yield 0, 2.0 if frame.number < 40 else 2.0 + frame.number % 2

    def reduce(self, key, series):
        return series.values

    def finish(self, results):
        values = np.array(results[0])
        late = values[40:]
        return {
            "c": package.Table({"n": package.Column(values, estimate=True)}),
            "late": package.Table({"k": package.Column(late, estimate=lambda level: uncertainty.count(late, level))}),
        }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("until", "least", "most"), [("c.n<0.2", 41, 450), ("late.k<9", 61, 99)], ids=["unchanged", "not there"]
)
def test_what_has_not_changed_or_is_not_there_yet_is_waited_for(growing, until, least, most):
    growing.grow(10)
    result = package.follow(
        Late(), growing.path, TOPOLOGY, every=10, idle=20, until=until, cache="off", progress=False,
        on_update=lambda result: growing.grow(10),
    )  # fmt: skip
    assert least <= result.record["frames"] <= most


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(
    ("words", "details"),
    [
        (["--until", "rdf.g<0.4"], "say every how many frames (every)"),
        (["--until", "rdf.g", "--every", "9"], "such as 'rdf.g<0.02'"),
        (["--until", "rdf.g<0.4", "--every", "9", "--confidence", "off"], "confidence is 'off'"),
        (["--until", "rdf.h<0.4", "--every", "9"], "makes no such interval; it makes rdf.g"),
        (["--until", "rmsd.rmsd<0.4", "--every", "9", "-n", "2"], "makes no such interval; it makes rdf.g"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(words, details):
    done = himach("follow", *RDF, "-t", TRAJECTORY, "-s", TOPOLOGY, "--idle", 5, "--cache", "off", *words, code=2)
    assert details in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mean_is_waited_for_as_a_curve_is():
    record = package.run(load("hydrogen-bonds")(), *sample("villin"), cache="off", progress=False).record["uncertainty"]
    mean = record["counts"]["means"]["bonds"]
    assert HalfWidth.parse("counts.bonds<1").observed(record) == pytest.approx((mean["high"] - mean["low"]) / 2)
    assert np.isnan(HalfWidth.parse("rmsd.rmsd < 1e-2").observed({"rmsd": {"half_widths": {"rmsd": None}}}))


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


def folders(place):
    return sorted(place.glob("himach-live-*"))


def test_only_folders_of_ones_own_are_removed(scratch, tmp_path):
    mine, other = scratch / "himach-live-mine", tmp_path / "other"
    theirs = scratch / "himach-live-theirs"
    for folder in (mine, other, theirs):
        folder.mkdir()
        (folder / LOCK).touch()
    (scratch / "himach-live-link").symlink_to(other)
    (scratch / "himach-live-file").write_text("")
    if os.geteuid() == 0:
        os.chown(theirs, 12345, 12345)
    with pairs_between(alone(), None, None, True) as path:
        assert path.parent.parent == scratch
        assert os.stat(path.parent).st_mode & 0o777 == 0o700
        assert not mine.exists()
        assert (other / LOCK).exists()
        assert (scratch / "himach-live-file").exists()
        assert theirs.exists() == (os.geteuid() == 0)
    assert not path.parent.exists()


def test_many_at_once_keep_their_folders(scratch):

    def one(comm):
        there = []
        for _ in range(20):
            with pairs_between(alone(), None, None, True) as path:
                path.mkdir()
                there.append(path.exists())
        return all(there)

    assert on_threads(8, one) == [True] * 8
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("out", [None, "out"])
def test_nodes_keep_pairs_beside_out_or_say_that_they_have_no_place(tmp_path, scratch, capsys, out):
    def one(comm):
        world = replace(alone(), comm=comm, nodes=("node1", "node2"))
        with pairs_between(world, None, None if out is None else tmp_path / out, False) as path:
            comm.barrier()
            return path

    first, second = on_threads(2, one)
    message = capsys.readouterr().err
    assert first == second
    if out is None:
        assert first is None
        assert message.count("every outcome maps all frames again") == 1
        assert "--pairs DIR" in message
    else:
        assert first.parent.parent == tmp_path
        assert not message
    assert not folders(tmp_path)
