"""The reader and the writer under MDAnalysis's own tests, and several who write under one name."""

import gc
import os
import signal
import subprocess
import sys

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.coordinates.base import BaseReference, BaseWriterTest, MultiframeReaderTest
from MDAnalysisTests.datafiles import COORDINATES_TOPOLOGY
from support import commands

import himach
import himach.mdanalysis
from himach.io.store.store import Store, StoreConflictError
from himach.mdanalysis import HimachReader, HimachWriter

URL = "himach://run8"
#: Writes a frame, says so, and goes on when it is told to.
WRITES_ON = """
import sys
import MDAnalysis as mda
import himach.mdanalysis
universe = mda.Universe.empty(20, trajectory=True)
with mda.Writer("himach://run8", 20) as writer:
    writer.write(universe)
    print("written", flush=True)
    if sys.stdin.readline():
        universe.trajectory.ts.time = 1.0
        writer.write(universe)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


@pytest.fixture
def other():
    """A writer in another process, which has written a frame."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES_ON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "written\n"
    yield process
    process.kill()
    process.communicate()


def positions(number):
    return np.full((20, 3), number, np.float32)


def write(numbers, url=URL, made=positions):
    universe = mda.Universe.empty(20, trajectory=True)
    with mda.Writer(url, 20) as writer:
        for number in numbers:
            universe.atoms.positions = made(number)
            universe.trajectory.ts.time = float(number)
            writer.write(universe)


def read(url=URL):
    return [float(ts.positions[0, 0]) for ts in mda.Universe.empty(20).load_new(url).trajectory]


def test_two_at_once_are_refused_in_one_process():
    universe = mda.Universe.empty(20, trajectory=True)
    with mda.Writer(URL, 20) as first:
        first.write(universe)
        with pytest.raises(StoreConflictError, match=r"run8 is being written at this moment.*choose another name"):
            write(range(3))
        write(range(3), "himach://run9")
    write([0])  # the same frame once more, now that the first one is done
    assert read() == [0.0]


def test_two_at_once_are_refused_in_two_processes(other):
    with pytest.raises(StoreConflictError, match="is being written at this moment"):
        write([0])
    assert "a writer or reader holds it" in commands.himach("cache", "evict", "run8", code=1).stdout
    assert other.communicate("go on\n", timeout=60) == ("", None)
    assert other.returncode == 0
    assert read() == [0.0, 0.0]


def test_a_child_that_was_forked_meanwhile_holds_nothing():
    universe = mda.Universe.empty(20, trajectory=True)
    writer = mda.Writer(URL, 20)
    writer.write(universe)
    waits, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tells)
        os.read(waits, 1)
        os._exit(0)
    try:
        writer.close()
        write(range(3))
    finally:
        os.close(waits)
        os.close(tells)
        os.waitpid(child, 0)
    assert read() == [0.0, 1.0, 2.0]


def test_of_a_killed_writer_the_name_is_free_at_once(other):
    os.kill(other.pid, signal.SIGKILL)
    other.wait(60)
    write(range(4))
    assert read() == [0.0, 1.0, 2.0, 3.0]


def test_what_is_there_is_never_written_over():
    write(range(3))
    write(range(5))
    with pytest.raises(StoreConflictError, match="frame 0 of dataset run8 is there with other positions"):
        write(range(2), made=lambda number: positions(number + 7))
    assert read() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_group_writes_itself():
    universe = mda.Universe.empty(20).load_new(np.array([positions(number) for number in range(4)]))
    universe.atoms[:5].write("himach://some", frames=universe.trajectory[1:3])
    result = mda.Universe.empty(5).load_new("himach://some").trajectory
    assert [float(ts.positions[0, 0]) for ts in result] == [1.0, 2.0]


def test_what_names_nothing_is_refused_quietly(recwarn):
    for url, message in (
        ("himach://", "names no dataset"),
        ("himach://nosuch", "no trajectory nosuch.*cache list' tells"),
    ):
        with pytest.raises(himach.UsageError, match=message):
            mda.Universe.empty(5).load_new(url)
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []  # of half-made readers


def test_a_writer_beside_a_server(server):
    """Frames are read through the server, and may not be pushed to."""
    write(range(6))
    assert read() == list(range(6))
    assert "server" in commands.himach("cache", "status", code=0).stdout
    with pytest.raises(StoreConflictError, match="frames of the simulation 'MDAnalysis in"):
        himach.Writer("run8", 20)
    write(range(8))  # goes on as if no server were there
    assert read() == list(range(8))


def test_a_name_that_is_pushed_to_is_refused(server):
    with himach.Writer("run8", 20) as pusher:
        pusher.push(positions(3), time=0)
        pusher.flush()
        with pytest.raises(StoreConflictError, match=r"has frames of '/.*himach cache evict run8"):
            write(range(3))
    assert read() == [3.0]


def test_a_pusher_that_came_first_and_has_pushed_nothing_is_refused(server, place):
    """Else frames of both would be one dataset's: their numbers need not meet."""
    with himach.Writer("run8", 20, first=5) as pusher:
        write(range(3))
        pusher.push(positions(9), time=5)
        with pytest.raises(StoreConflictError, match="frames of the simulation 'MDAnalysis in"):
            pusher.flush()
        for item in pusher._take_pushers():
            item.abandon()
    assert sorted(Store(place).dataset("run8").native) == [0, 1, 2]


class Reference(BaseReference):
    """The dataset that MDAnalysis's tests expect; boxes change, as they do in the tests of other formats."""

    def __init__(self):
        super().__init__()
        self.trajectory, self.topology = "himach://reference", COORDINATES_TOPOLOGY
        self.reader = HimachReader
        self.writer = HimachWriter
        self.ext = "himach"
        self.changing_dimensions = True

    def write(self):
        universe = mda.Universe.empty(self.n_atoms, trajectory=True)
        with mda.Writer(self.trajectory, self.n_atoms) as writer:
            for i in range(self.n_frames):
                ts = universe.trajectory.ts
                ts.positions = 2**i * self.first_frame.positions
                ts.time = i
                ts.dimensions = self.dimensions if i != 1 else self.dimensions_second_frame
                writer.write(universe)


@pytest.fixture
def ref(place):
    reference = Reference()
    reference.write()
    return reference


class TestReader(MultiframeReaderTest):
    pass


class TestWriter(BaseWriterTest):
    pass
