"""Datasets that were kept with keywords of MDAnalysis are found by their name; those of earlier versions are not."""

import warnings

import numpy as np
import pytest
from support.cache_data import N_FRAMES, analyse, bits, make, make_dump, numbers_of, only_dataset
from support.commands import himach as command

import himach
from himach.io.datasets.description import describe
from himach.io.datasets.origin_stamp import VERSION
from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin
from himach.ranks.communicator import alone
from himach.staging.options import StageOptions
from himach.staging.stage import stage


def staged(folder, name="d", **options) -> None:
    """Stage as `stage()` does, alone, in the store of a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stage(alone(), StageOptions(dataset=name, cache=str(folder / "store"), quiet=True, **options))


@pytest.fixture
def dump(tmp_path):
    """A LAMMPS dump whose suffix does not tell its format, and a topology."""
    topology, trajectory = make_dump(tmp_path)
    return topology, trajectory.rename(tmp_path / "f.dump")


def test_a_lammps_dump_is_run_by_its_name(dump, tmp_path, monkeypatch):
    topology, trajectory = dump
    monkeypatch.chdir(tmp_path)
    store = ("--cache", tmp_path / "store")
    command("stage", trajectory, "--dataset", "d", "--universe", "format=LAMMPSDUMP", *store, code=0)
    expected = analyse(trajectory, topology, cache="off", universe={"format": "LAMMPSDUMP"})
    trajectory.rename(tmp_path / "away")
    for named in (topology, None):  # a dump is a topology, too
        for keywords in ({}, {"format": "LAMMPSDUMP"}):
            result = analyse("d", named, cache=tmp_path / "store", universe=keywords)
            assert bits(result.outcome) == bits(expected.outcome)
            assert result.record["bytes"]["origin"] == 0
    command("run", "rmsd", "-p", "selection=all", "--trajectory", "d", *store, code=0)
    assert "LAMMPSDUMP" in command("info", "d", *store).stdout


def test_a_dataset_by_its_name_does_not_say_that_its_file_is_away(tmp_path):
    topology, trajectory = make(tmp_path)
    staged(tmp_path, trajectories=[trajectory], topology=topology)
    store = Store(tmp_path / "store")
    (generation,) = store.generations("d")
    store.dataset("d", generation).drop(np.arange(5, 9), native=True)
    with pytest.raises(himach.TrajectoryError, match=r"4 of 64 .* is not read.* a dataset's name"):
        analyse("d", topology, cache=store.path)
    with pytest.raises(himach.TrajectoryError, match=r"no cache gives it, and .*md\.trr is not read .* name the file"):
        analyse("d", topology, cache=store.path, start=5)
    assert numbers_of(analyse("d", topology, cache=store.path, stop=5)) == list(range(5))


def test_the_topology_is_parsed_as_it_was(tmp_path):
    topology, trajectory = make(tmp_path)
    renamed = topology.rename(tmp_path / "top.dat")
    staged(tmp_path, trajectories=[trajectory], topology=renamed, keywords={"topology_format": "GRO"})
    renamed.rename(tmp_path / "again.gro")
    for named in (None, tmp_path / "again.gro"):  # what was kept speaks of the file that was kept
        assert numbers_of(analyse("d", named, cache=tmp_path / "store")) == list(range(N_FRAMES))


def test_what_was_kept_otherwise_is_told(tmp_path):
    topology, trajectory = make(tmp_path)
    staged(tmp_path, trajectories=[trajectory], topology=topology, keywords={"dt": 3.0, "time_offset": 1.0})
    for keywords in ({}, {"dt": 3.0}, {"dt": 3.0, "time_offset": 1.0}):
        result = analyse("d", None, cache=tmp_path / "store", universe=keywords)
        assert list(result.outcome["frames"]["time"][:3]) == [1, 4, 7]
    for keywords in ({"dt": 2.0}, {"convert_units": False}):
        for call in (analyse, describe_it):
            with pytest.raises(
                himach.UsageError, match=r"has d as it was read with dt=3\.0, time_offset=1\.0, and you"
            ):
                call("d", None, cache=tmp_path / "store", universe=keywords)


def describe_it(name, topology, cache, universe):
    return describe([name], topology, universe, str(cache))


def test_what_a_path_was_kept_with_is_told(tmp_path):
    topology, trajectory = make(tmp_path)
    analyse(trajectory, topology, cache=tmp_path / "store", universe={"dt": 2.5})
    trajectory.rename(tmp_path / "away")
    with pytest.warns(UserWarning, match=r"md\.trr cannot be reached.*kept in the cache: with dt=2\.5"):
        result = analyse(trajectory, topology, cache=tmp_path / "store")
    assert list(result.outcome["frames"]["time"][:3]) == [0, 2.5, 5]


def test_files_that_are_away_are_told_with_warnings_and_in_the_record(tmp_path):
    topology, trajectory = make(tmp_path)
    assert analyse(trajectory, topology, cache=tmp_path / "store").record["warnings"] == []
    for path in (trajectory, topology):
        path.unlink()
    with pytest.warns(UserWarning, match=r"md\.trr cannot be reached.*kept in the cache$"):
        result = analyse(trajectory, topology, cache=tmp_path / "store")
    texts = [f"{path} cannot be reached, and is read as it was kept in the cache" for path in (trajectory, topology)]
    assert [text for text in texts if not any(text in warning for warning in result.record["warnings"])] == []


def test_one_of_several_must_be_chosen(tmp_path):
    topology, trajectory = make(tmp_path)
    for dt in (2.5, 5.0):
        analyse(trajectory, topology, cache=tmp_path / "store", universe={"dt": dt})
    trajectory.rename(tmp_path / "away")
    with pytest.raises(himach.UsageError, match=r"with dt=2\.5; or with dt=5\.0, and you ask for no keywords"):
        analyse(trajectory, topology, cache=tmp_path / "store")
    result = analyse(trajectory, topology, cache=tmp_path / "store", universe={"dt": 5.0})
    assert list(result.outcome["frames"]["time"][:3]) == [0, 5, 10]


def test_keywords_of_the_topology_alone_are_no_matter(tmp_path):
    topology, trajectory = make(tmp_path)
    staged(tmp_path, trajectories=[trajectory])
    pdb = tmp_path / "top.pdb"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        himach.io.universe.view.Universe(topology).atoms.write(pdb)
    found = analyse("d", pdb, cache=tmp_path / "store", universe={"force_chainids_to_segids": True})
    assert numbers_of(found) == list(range(N_FRAMES))
    with pytest.raises(himach.UsageError, match="did you mean 'dt'"):
        analyse("d", pdb, cache=tmp_path / "store", universe={"dtt": 2.0})


@pytest.mark.parametrize("name", ["md.xyz", "md.trr"])
def test_what_an_earlier_version_kept_is_not_served(name, tmp_path, monkeypatch):
    """Its readers gave wrong frames, and kept them."""
    topology, trajectory = make(tmp_path, name=name)
    place = tmp_path / "store"
    expected = analyse(trajectory, topology, cache="off")
    monkeypatch.setattr("himach.io.datasets.origin_stamp.VERSION", VERSION - 1)
    analyse(trajectory, topology, cache=place)
    dataset = only_dataset(place, trajectory)
    dataset.drop(range(N_FRAMES))
    for frame in open_origin([trajectory]).read(range(N_FRAMES)):  # the next frame in place of each
        dataset.write(frame.number, frame.time, frame.box, np.roll(frame.positions, 1, 0), frame.velocities, None)
    dataset.close()
    assert bits(analyse(trajectory, topology, cache=place).outcome) != bits(expected.outcome)
    monkeypatch.setattr("himach.io.datasets.origin_stamp.VERSION", VERSION)
    for _ in range(2):
        assert bits(analyse(trajectory, topology, cache=place).outcome) == bits(expected.outcome)
    trajectory.rename(tmp_path / "away")
    assert bits(analyse(trajectory, topology, cache=place).outcome) == bits(expected.outcome)


def test_a_dataset_of_an_earlier_version_is_not_taken_for_a_pushed_one(tmp_path):
    topology, trajectory = make(tmp_path)
    staged(tmp_path, trajectories=[trajectory], topology=topology)
    (directory,) = Store(tmp_path / "store").directories()
    dataset = Store(tmp_path / "store").open_directory(directory)
    dataset.attach("origin.json", b'{"version": 1}')
    dataset.close()
    with pytest.raises(himach.UsageError, match="there is no trajectory d"):
        analyse("d", topology, cache=tmp_path / "store")
