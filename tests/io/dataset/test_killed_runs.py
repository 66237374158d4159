"""Runs that are killed leave in the cache what they had read, but for a second; those that are asked to end, all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cache_data import Emit, make, only_dataset
from support.commands import wait_until
from support.ranks import clean_environment

from himach.io.dataset.subsets import subsets_beside

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


def start(tmp_path: Path, begun: Path, *launcher: str, flush: float, kind: type[Slow] = Slow) -> subprocess.Popen:
    topology, trajectory = make(tmp_path, 400)
    program = tmp_path / "program.py"
    program.write_text(
        "import himach, test_killed_runs\n"
        "from himach.io.dataset import writeback\n"
        "from himach.launch import stop_requests\n"
        f"writeback.FLUSH_SECONDS = {flush}\n"
        "stop_requests.OTHERS_WRITE = 5.0\n"  # a busy machine's second rank takes its time
        f"himach.run(test_killed_runs.{kind.__name__}(folder={str(begun)!r}), {str(trajectory)!r}, {str(topology)!r},\n"
        f"           cache={str(tmp_path / 'store')!r}, progress=False)\n"
    )
    folders = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environ = clean_environment(PYTHONPATH=folders)
    return subprocess.Popen([*launcher, sys.executable, "-P", str(program)], env=environ)


def kept(tmp_path: Path) -> set[int]:
    dataset = only_dataset(tmp_path / "store", tmp_path / "md.trr")
    return set(dataset.alien).union(*(one.dataset.alien for one in subsets_beside(dataset)))


@pytest.mark.nightly(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Slow, SlowOfSome])
def test_a_killed_run_loses_little_more_than_a_second(tmp_path, begun, kind):
    process = start(tmp_path, begun, flush=1.0, kind=kind)
    try:
        assert wait_until(lambda: len(list(begun.iterdir())) > 4 / SECONDS)
    finally:
        process.kill()
        process.wait()
    assert len(kept(tmp_path)) > 1.5 / SECONDS


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("kind", [Slow, SlowOfSome])
def test_a_run_that_is_terminated_leaves_all_that_it_read(tmp_path, begun, kind):
    process = start(tmp_path, begun, flush=1000.0, kind=kind)
    try:
        assert wait_until(lambda: len(list(begun.iterdir())) > 20)
        read = {int(path.name) for path in begun.iterdir()}
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert len(read - kept(tmp_path)) <= 1  # the one that was begun


@pytest.mark.nightly
def test_ranks_that_are_terminated_leave_all_that_they_read(tmp_path, begun):
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    process = start(tmp_path, begun, mpiexec, "-launcher", "fork", "-n", "2", flush=1000.0)
    try:
        assert wait_until(lambda: len(list(begun.iterdir())) > 40)
        read = {int(path.name) for path in begun.iterdir()}
        for rank in ranks_of(tmp_path / "program.py"):
            os.kill(rank, signal.SIGTERM)
            time.sleep(0.1)  # the launcher would kill the others as soon as the first one ends
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
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
