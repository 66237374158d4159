"""Conversions whose time is over: the same command goes on, and the bytes are those of one that had time."""

import json
import os
from contextlib import ExitStack

import pytest
from MDAnalysisTests.datafiles import GRO, XTC

import himach as hm
from himach.conversion import convert
from himach.errors import TimeUpError, UsageError
from himach.ranks.launch.stop_requests import StopRequests

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = {"select": "protein", "nojump": True, "center": "protein", "fit": "name CA"}


@pytest.fixture(autouse=True)
def _rounds(monkeypatch):
    monkeypatch.setattr(convert, "AT_ONCE", 2)


@pytest.fixture
def time_up(monkeypatch):
    """Whether the time is over."""
    state = {"now": True}
    monkeypatch.setattr(StopRequests, "time_up", property(lambda requests: state["now"]))
    return state


def written(folder, name, **options):
    return hm.convert(XTC, GRO, out=folder / name, cache="off", **{**STEPS, **options})


@pytest.mark.parametrize("suffix", ["xtc", "trr", "dcd", "nc"])
def test_the_same_call_goes_on(tmp_path, time_up, suffix):
    time_up["now"] = False
    whole, out = written(tmp_path, f"whole.{suffix}"), tmp_path / f"out.{suffix}"
    time_up["now"] = True
    for done in (2, 4):
        with pytest.raises(TimeUpError, match=rf"is up after {done} of 10 frames; they are kept beside .*{out.name}"):
            written(tmp_path, out.name, max_time=3600)
        assert not out.exists()
        assert not out.with_suffix(".pdb").exists()
    time_up["now"] = False
    ended = written(tmp_path, out.name, record=tmp_path / "record.json")
    assert (ended.before, whole.before, ended.n_bytes) == (4, 0, whole.n_bytes)
    assert "4 frames written before" in str(ended)
    assert json.loads((tmp_path / "record.json").read_text())["written"]["before"] == 4
    assert out.read_bytes() == whole.path.read_bytes()
    assert not list(tmp_path.glob(".himach*"))


CHANGES = [{"select": "name CA"}, {"nojump": False}, {"fit": None}, {"start": 1}, {"reference": GRO}, {"wrap": "atoms"}]


@pytest.mark.parametrize("change", CHANGES)
def test_another_conversion_begins_anew(tmp_path, time_up, change):
    with pytest.raises(TimeUpError):
        written(tmp_path, "out.xtc", max_time=3600)
    time_up["now"] = False
    assert written(tmp_path, "out.xtc", **change).before == 0
    assert not list(tmp_path.glob(".himach*"))


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 8, b"\1" + bytes(7), b"\xff" * 8, bytes(8)])
def test_what_is_kept_and_damaged_is_not_taken(tmp_path, time_up, damage):
    with pytest.raises(TimeUpError):
        written(tmp_path, "out.xtc", max_time=3600)
    (kept,) = tmp_path.glob(".himach*")
    kept.write_bytes(damage)
    time_up["now"] = False
    assert written(tmp_path, "out.xtc").before == 0
    assert not list(tmp_path.glob(".himach*"))


def test_one_conversion_alone_goes_on(tmp_path, time_up):
    from himach.conversion.state import take_unfinished
    from himach.conversion.target_files import make_file

    with pytest.raises(TimeUpError):
        written(tmp_path, "out.xtc", max_time=3600)
    path, first, came = tmp_path / "out.xtc", tmp_path / ".himach-0123abcd.out.xtc", []
    with ExitStack() as stack:

        def identity():
            came.append(take_unfinished(path, tmp_path / "second", identity, stack))
            assert make_file(path) != first
            came.append(first.exists())  # what the other one begins anew leaves it
            return "another"

        assert take_unfinished(path, first, identity, stack) is None
    assert came == [None, True]
    assert not first.exists()


def test_what_cannot_go_on_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"out.xyz is written by one rank, as a whole: leave max_time out"):
        written(tmp_path, "out.xyz", max_time=60)
    with pytest.raises(UsageError, match="members of an ensemble are converted without max_time"):
        hm.convert(ensemble="*.xtc", out=tmp_path / "{member}.xtc", max_time=60)
    assert os.listdir(tmp_path) == []
