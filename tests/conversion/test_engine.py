"""Conversions of the frames that a running engine gives."""

import json

import MDAnalysis as mda
import numpy as np
import pytest
from runner.live.engines import MadeUpEngine, made_up, topology
from support.commands import himach as himach_command

import himach


@pytest.fixture
def top(tmp_path):
    return topology(tmp_path)


def converted(path, universe, top, **choice):
    """Return the bytes of a conversion of what an engine had sent, as a file."""
    sent = path / "sent.trr"
    with mda.Writer(str(sent), universe.atoms.n_atoms) as writer:
        for ts in universe.trajectory:
            ts.data["step"] = ts.frame
            writer.write(universe.atoms)
    return himach.convert(sent, top, out=path / "expected.xtc", cache="off", **choice).path.read_bytes()


@pytest.mark.parametrize("ranks", [None, 2])
def test_frames_are_converted_when_the_engine_has_ended(tmp_path, top, capfd, ranks):
    universe = made_up(23)
    options = {"nojump": True, "wrap": "atoms"}
    with MadeUpEngine(universe) as engine:
        done = himach.convert(
            engine.address, top, out=tmp_path / "out.xtc", record=tmp_path / "how.json", ranks=ranks, **options
        )
    assert (done.frames, done.atoms) == (23, 20)
    assert done.path.read_bytes() == converted(tmp_path, universe, top, **options)
    dataset = json.loads((tmp_path / "how.json").read_text())["dataset"]["path"]
    assert dataset.startswith("live-127.0.0.1-")
    again = himach.convert(dataset, top, out=tmp_path / "again.xtc", **options)
    assert again.path.read_bytes() == done.path.read_bytes()


def test_as_many_as_are_asked_for(tmp_path, top):
    universe = made_up(40)
    with MadeUpEngine(universe, rate=20) as engine:
        done = himach_command(
            "convert", engine.address, "-s", top, "--out", tmp_path / "out.xtc", "--stop", 9, "--step", 2
        )
    assert done.returncode == 0, done.stderr
    assert "5 frames of 20 atoms" in done.stdout
    assert "kept as dataset live-" in done.stderr
    read = mda.Universe(str(top), str(tmp_path / "out.xtc")).trajectory
    np.testing.assert_allclose([ts.time for ts in read], [0, 1, 2, 3, 4])


def test_what_cannot_be_is_told_before_the_engine_begins(tmp_path, top):
    there = tmp_path / "out.xtc"
    there.touch()
    with MadeUpEngine(made_up(3)) as engine:
        for options, words in [
            ({}, "is there already"),
            ({"max_time": 9, "force": True}, "not with frames or max_time"),
            ({"frames": [0], "force": True}, "not with frames or max_time"),
        ]:
            with pytest.raises(himach.UsageError, match=words):
                himach.convert(engine.address, top, out=there, **options)
        assert not engine.sent
    with pytest.raises(himach.UsageError, match="name a topology file"):
        himach.convert("imd://127.0.0.1:9", out=tmp_path / "other.xtc")
    assert there.read_bytes() == b""


def test_frames_are_kept_where_the_conversion_fails(tmp_path, top, capfd):
    with MadeUpEngine(made_up(3)) as engine, pytest.raises(himach.UsageError, match="selects none of the 20"):
        himach.convert(engine.address, top, out=tmp_path / "out.xtc", select="name NONE")
    assert "kept as dataset live-" in capfd.readouterr().err
    assert not (tmp_path / "out.xtc").exists()
