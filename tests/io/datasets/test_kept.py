"""What a dataset keeps: runs that are killed, several nodes, split files."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import MDAnalysis as mda
import pytest
from MDAnalysisTests import datafiles as data
from support.cache_data import Emit, only_dataset
from support.cache_data import make as make_of_cache_data
from support.commands import wait_until
from support.io_samples import FORMATS, copied, make
from support.ranks import clean_environment, run_under_mpiexec

from himach.conversion.split import split
from himach.errors import UsageError
from himach.io.datasets.subsets import list_subsets
from himach.io.trajectories.origin import open_origin
from himach.io.universe.topology import load_topology

SECONDS = 0.05  # a frame


class Slow(Emit):
    """Takes its time, and leaves a file for each frame that it has begun."""

    folder: str = ""

    def map(self, frame):
        Path(self.folder, str(frame.number)).touch()
        time.sleep(SECONDS)
        yield from super().map(frame)


class SlowOfSome(Slow):
    """The same of some atoms."""

    def atoms(self, universe):
        return universe.atoms[3:9]

    def map(self, frame):
        Path(self.folder, str(frame.number)).touch()
        time.sleep(SECONDS)
        yield "frame", (frame.number, frame.time, float(frame.positions[3:9].sum()))


@pytest.fixture
def begun(tmp_path) -> Path:
    folder = tmp_path / "begun"
    folder.mkdir()
    return folder


@contextlib.contextmanager
def started(tmp_path: Path, begun: Path, *launcher: str, flush: float, kind: type[Slow] = Slow):
    topology, trajectory = make_of_cache_data(tmp_path, 400)
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
        read = {int(path.name) for path in begun.iterdir()}
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert len(read - kept(tmp_path)) <= 1  # the one that was begun


@pytest.mark.nightly
def test_ranks_that_are_terminated_leave_all_that_they_read(tmp_path, begun):
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    with started(tmp_path, begun, mpiexec, "-launcher", "fork", "-n", "2", flush=1000.0) as process:
        assert wait_until(lambda: len(list(begun.iterdir())) > 40)
        read = {int(path.name) for path in begun.iterdir()}
        for rank in ranks_of(tmp_path / "program.py"):
            os.kill(rank, signal.SIGTERM)
            time.sleep(0.1)  # the launcher would kill the others as soon as the first one ends
        assert process.wait(60) != 0
    assert len(read - kept(tmp_path)) <= 2  # those that were begun


def ranks_of(program: Path) -> list[int]:
    """Return the processes that run a program, but not its launcher."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:3] == [os.fsencode(sys.executable), b"-P", os.fsencode(program)]:
            found.append(int(folder.name))
    return found


@pytest.mark.nightly
@pytest.mark.slow
def test_on_four_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_situations.py"), 4, timeout=200)


@pytest.mark.parametrize("frames_per_file", [1, 4, 100])
def test_frames_are_those_of_the_original(frames_per_file, tmp_path):
    from ..trajectories.foreign import minimal_topology, read_frames  # a program imports this file by its name

    trajectory = make(tmp_path / "a.trr", [0.5 * number for number in range(10)], velocities=True)
    n_frames = split([trajectory], tmp_path / "frames", minimal_topology(tmp_path, 40), frames_per_file=frames_per_file)
    again = open_origin([tmp_path / "frames"])
    assert (n_frames, again.has_velocities) == (10, True)
    assert read_frames(again) == read_frames(open_origin([trajectory]))
    assert load_topology(None, again).n_atoms == 40


def test_bytes_are_copied(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [3, 4])]
    split(paths, tmp_path / "frames", frames_per_file=1)
    names = sorted(path for path in os.listdir(tmp_path / "frames") if path.startswith("frames-"))
    copies = b"".join((tmp_path / "frames" / name).read_bytes() for name in names)
    assert len(names) == 5
    assert copies == b"".join(path.read_bytes() for path in paths)
    origin = open_origin([tmp_path / "frames"])
    assert origin.nbytes(range(5)) == len(copies)


def test_progress(tmp_path):
    path = make(tmp_path / "a.trr", list(range(3)), velocities=True)
    seen = []
    split([path], tmp_path / "frames", frames_per_file=2, progress=lambda n, total: seen.append((n, total)))
    assert seen == [(2, 3), (3, 3)]
    assert [frame.time for frame in open_origin([tmp_path / "frames"]).read([2, 0, 1])] == [2, 0, 1]


def test_without_a_topology(tmp_path):
    split([make(tmp_path / "a.xtc", [0, 1])], tmp_path / "frames")
    with pytest.raises(UsageError, match="holds no topology"):
        load_topology(None, open_origin([tmp_path / "frames"]))


def test_compressed_topology_keeps_its_suffixes(tmp_path):
    n_atoms = mda.Universe(data.XYZ_bz2).atoms.n_atoms
    split([make(tmp_path / "a.xtc", [0, 1], n_atoms)], tmp_path / "frames", data.XYZ_bz2)
    assert (tmp_path / "frames" / "topology.xyz.bz2").exists()


def test_directories_that_are_refused(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1])
    with pytest.raises(UsageError, match="not empty"):
        split([path], tmp_path)
    split([path], tmp_path / "frames")
    with pytest.raises(UsageError, match="is a frame directory already: give it as the trajectory"):
        split([path], tmp_path / "frames")
    with pytest.raises(UsageError, match="is a file"):
        split([path], path)
    (tmp_path / "frames" / "himach.json").unlink()
    with pytest.raises(UsageError, match=r"no frame directory .*written last"):
        open_origin([tmp_path / "frames"])


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"XTC", "TRR"}))
def test_formats_that_cannot_be_copied_are_refused(name, tmp_path):
    topology, trajectory = copied(name, tmp_path)
    with pytest.raises(UsageError, match="copied byte by byte"):
        split([trajectory], tmp_path / "frames", topology)
    assert not (tmp_path / "frames").exists()


def test_mixed_files_and_other_units_are_refused(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1]), make(tmp_path / "b.trr", [2, 3])]
    with pytest.raises(UsageError, match="TRR and XTC"):
        split(paths, tmp_path / "frames")
    with pytest.raises(UsageError, match="their own units"):
        split(paths[:1], tmp_path / "frames", keywords={"convert_units": False})
