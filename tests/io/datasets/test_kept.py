"""What a dataset keeps: runs that are killed, several nodes, lost files, keywords, full disks."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.cache_data import N_FRAMES, Emit, analyse, bits, make, make_dump, numbers_of, only_dataset, stage_on_nodes
from support.commands import himach as command
from support.commands import same_files, wait_until
from support.needs import small_disk
from support.ranks import clean_environment, run_under_mpiexec

import himach
from himach.io.datasets.description import describe
from himach.io.datasets.origin_stamp import VERSION
from himach.io.datasets.subsets import list_subsets
from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin
from himach.ranks.communicator import alone
from himach.staging.options import StageOptions
from himach.staging.stage import stage

SECONDS = 0.05  # a frame


class Slow(Emit):
    """Takes its time, and leaves a file for each frame that it has begun, of the name of the frame and the process."""

    folder: str = ""

    def map(self, frame):
        self.begin(frame)
        yield from super().map(frame)

    def begin(self, frame):
        Path(self.folder, f"{frame.number} {os.getpid()}").touch()
        time.sleep(SECONDS)


class SlowOfSome(Slow):
    """The same of some atoms."""

    def atoms(self, universe):
        return universe.atoms[3:9]

    def map(self, frame):
        self.begin(frame)
        yield "frame", (frame.number, frame.time, float(frame.positions[3:9].sum()))


@pytest.fixture
def begun(tmp_path) -> Path:
    folder = tmp_path / "begun"
    folder.mkdir()
    return folder


@contextlib.contextmanager
def started(tmp_path: Path, begun: Path, *launcher: str, flush: float, kind: type[Slow] = Slow):
    topology, trajectory = make(tmp_path, 400)
    program = tmp_path / "program.py"
    program.write_text(
        "import himach, test_kept\n"
        "from himach.io.datasets import writeback\n"
        "from himach.ranks.launch import stop_requests\n"
        f"writeback.FLUSH_SECONDS = {flush}\n"
        "stop_requests.OTHERS_WRITE = 5.0\n"  # a busy machine's second rank takes its time
        f"himach.run(test_kept.{kind.__name__}(folder={str(begun)!r}), {str(trajectory)!r}, {str(topology)!r},\n"
        f"           cache={str(tmp_path / 'store')!r}, progress=False)\n"
    )
    folders = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environ = clean_environment(PYTHONPATH=folders)
    process = subprocess.Popen([*launcher, sys.executable, "-P", str(program)], env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def words_of(begun: Path, column: int) -> set[int]:
    """Return the frames that were begun, or the processes that began them."""
    return {int(path.name.split()[column]) for path in begun.iterdir()}


def kept(tmp_path: Path) -> set[int]:
    dataset = only_dataset(tmp_path / "store", tmp_path / "md.trr")
    return set(dataset.alien).union(*(one.dataset.alien for one in list_subsets(dataset)))


@pytest.mark.nightly(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Slow, SlowOfSome])
def test_a_killed_run_loses_little_more_than_a_second(tmp_path, begun, kind):
    with started(tmp_path, begun, flush=1.0, kind=kind):
        assert wait_until(lambda: len(list(begun.iterdir())) > 4 / SECONDS)
    assert len(kept(tmp_path)) > 1.5 / SECONDS


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("kind", [Slow, SlowOfSome])
def test_a_run_that_is_terminated_leaves_all_that_it_read(tmp_path, begun, kind):
    with started(tmp_path, begun, flush=1000.0, kind=kind) as process:
        assert wait_until(lambda: len(list(begun.iterdir())) > 20)
        read = words_of(begun, 0)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert len(read - kept(tmp_path)) <= 1  # the one that was begun


@pytest.mark.nightly(but=["alien_on_two_nodes"])
@pytest.mark.slow
@pytest.mark.parametrize("select", ["alien_on_two_nodes", "not alien_on_two_nodes"])
def test_on_four_ranks(select):
    run_under_mpiexec(Path(__file__).with_name("ranks_situations.py"), 4, timeout=200, select=select)


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
    return describe(name, topology, universe, str(cache))


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


def test_on_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_together.py"), 3)


WAYS = [".", "*-*", "*-*/*.seg", "*-*/*.idx", "*-*/meta", "*-*/x-*", "*-*/x-index", "*-*/x-origin.json"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Stores of two nodes after a job, what it was, and what one process gives."""
    folder = tmp_path_factory.mktemp("jobs")
    topology, trajectory = make(folder, name="md.xtc")
    words = ["run", "radius-of-gyration", "-p", "selection=all", "-t", trajectory, "-s", topology, "--quiet", "--out"]
    command(*words, folder / "alone", "--cache", "off", code=0)
    stage_on_nodes(folder / "disks", ["a", "b"], *words, folder / "job", code=0)
    return folder, words


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize("lost", WAYS)
def test_a_store_that_lost_files_between_jobs(jobs, tmp_path, lost, node):
    """A disk's purge removes what was not used for long: a store, a dataset, or some of its files."""
    folder, words = jobs
    shutil.copytree(folder / "disks", tmp_path / "disks", ignore=shutil.ignore_patterns(".disk"))
    gone = [*(tmp_path / "disks" / node).glob(lost)] if lost != "." else [tmp_path / "disks" / node]
    assert gone
    for path in gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    stage_on_nodes(tmp_path / "disks", ["a", "b"], *words, tmp_path / "job", code=0)
    same_files(folder / "alone", tmp_path / "job")


def test_a_full_disk_is_told_with_its_node(tmp_path):
    topology, trajectory = make(tmp_path)
    words = ["run", "radius-of-gyration", "-p", "selection=all", "-t", trajectory, "-s", topology, "--quiet"]
    with small_disk(tmp_path / "m", "mode=700,size=16k"):
        done = stage_on_nodes(tmp_path, ["n", "m"], *words, code=0)
    assert re.search(r"warning: no frames are .*\(node m\)", done.stderr), done.stderr
