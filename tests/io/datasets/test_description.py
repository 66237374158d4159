"""``himach info``: what is cached of a trajectory, and what is known of one that is away."""

import json

import pytest
from MDAnalysisTests import datafiles as data
from support.cache_data import N_FRAMES, analyse, make, make_dump
from support.commands import himach
from support.io_samples import make as make_file

from himach.errors import UsageError
from himach.io.datasets.description import as_text, describe


@pytest.fixture
def info(monkeypatch, place):
    """Describe with the store at `place` as the default one."""
    monkeypatch.setenv("HIMACH_CACHE", str(place))
    return lambda trajectory, **options: describe([trajectory], **options)


def test_what_is_cached_is_counted(tmp_path, place, info):
    topology, trajectory = make(tmp_path)
    assert "there is no store" in info(trajectory)["cached"]
    analyse(trajectory, topology, cache=place, stop=20)
    assert f"20 of {N_FRAMES} frames (0 native, 20 alien," in info(trajectory)["cached"]
    analyse(trajectory, topology, cache=place)
    assert f"all of {N_FRAMES} frames (0 native, {N_FRAMES} alien," in info(trajectory)["cached"]
    assert "nothing in" in info(trajectory, keywords={"dt": 5.0})["cached"]


@pytest.mark.parametrize("name", ["md.trr", "md.xtc", "md.xyz"])
def test_a_trajectory_that_is_away_is_described_as_it_was(tmp_path, place, info, name):
    topology, trajectory = make(tmp_path, name=name)
    analyse(trajectory, topology, cache=place)
    before = info(trajectory)
    for path in (topology, trajectory):
        path.rename(f"{path}.away")
    after = info(trajectory)
    assert after["origin"].startswith("away")
    assert after["topology"] == str(topology)  # the one that was used; before, there was none to name
    kept = set(before) - {"origin", "topology", "warnings"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_what_frames_alone_tell_is_unknown_where_they_are_not_cached(tmp_path, place, info):
    topology, trajectory = make_dump(tmp_path)
    analyse(trajectory, topology, cache=place, start=10, universe={"format": "LAMMPSDUMP"})
    trajectory.rename(f"{trajectory}.away")
    facts = info(trajectory, keywords={"format": "LAMMPSDUMP"})
    assert facts["frames"] == N_FRAMES
    assert facts["first_time"] is None
    assert "unknown to unknown ps" in as_text(facts)


def test_the_command_takes_a_store_and_the_name_of_a_dataset_there(tmp_path, place):
    topology, trajectory = make(tmp_path)
    analyse(trajectory, topology, cache=place)
    himach("stage", trajectory, "--topology", topology, "--dataset", "mine", "--cache", place, "--quiet", code=0)
    trajectory.rename(f"{trajectory}.away")
    for name, kinds in ((trajectory, f"0 native, {N_FRAMES} alien"), ("mine", f"{N_FRAMES} native, 0 alien")):
        shown = himach("info", name, "--cache", place, code=0).stdout
        assert f"all of {N_FRAMES} frames ({kinds}" in shown
        assert str(place) in shown
    assert f"there is no trajectory {trajectory}" in himach("info", trajectory, code=2).stderr


def test_a_file_is_described(tmp_path):
    path = make_file(tmp_path / "a.trr", [0, 2, 4], velocities=True)
    plain = describe([path])
    assert plain["frames"] == 3
    assert plain["atoms"] == 40
    assert (plain["first_time"], plain["last_time"], plain["dt"]) == (0, 4, 2)
    assert plain["box"] == [50, 50, 50, 90, 90, 90]
    assert plain["velocities"]
    assert plain["topology"] is None
    assert plain["format"] == "TRR"
    json.dumps(plain)
    assert describe([data.PDB_multiframe])["topology"] == data.PDB_multiframe
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut off" in describe([path])["warnings"][0]
    with pytest.raises(UsageError, match="has 40"):
        describe([path], data.GRO)
