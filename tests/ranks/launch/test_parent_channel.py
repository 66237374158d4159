"""What ranks and the process that started them hand over and print; they end with it, whatever they are doing."""

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.commands import wait_until

import himach
from himach.errors import RankError, TrajectoryError
from himach.ranks import segments
from himach.ranks.launch.parent_channel import RankChannel
from himach.ranks.launch.pool import end, relay
from himach.ranks.launch.pool import spawn as spawn_ranks

BUSY = """
import ctypes, sys
from himach.ranks.launch.parent_channel import ParentChannel
ParentChannel.from_env().die_with_parent()
print("held", flush=True)
ctypes.PyDLL(None).sleep(60)  # Python's lock is held all the time, as in MPI_Init
"""

STARTER = f"""
import os, subprocess, sys, time
from himach.ranks.launch.parent_channel import RankChannel
channel = RankChannel()
rank = subprocess.Popen([sys.executable, "-c", {BUSY!r}], env=os.environ | channel.variable, stdout=subprocess.PIPE)
rank.stdout.readline()
print(rank.pid, flush=True)
time.sleep(60)
"""


def is_alive(pid):
    try:
        return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_rank_that_holds_pythons_lock_ends_with_its_starter():
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True) as starter:
        rank = int(starter.stdout.readline())
        assert is_alive(rank)
        starter.kill()
        starter.wait()
    assert wait_until(lambda: not is_alive(rank), 2)


def test_a_rank_that_comes_after_its_starter_has_gone_ends_at_once():
    with contextlib.closing(RankChannel()) as channel:
        gone = channel.variable
    done = subprocess.run([sys.executable, "-c", BUSY], env=os.environ | gone, timeout=20, check=False)
    assert done.returncode == 1


def test_a_rank_whose_starters_number_is_anothers_ends_at_once():
    with contextlib.closing(RankChannel()) as channel:
        (name, value), *_ = channel.variable.items()
        *numbers, inode = value.split()
        wrong = {name: " ".join([*numbers, str(int(inode) + 1)])}
        done = subprocess.run([sys.executable, "-c", BUSY], env=os.environ | wrong, timeout=20, check=False)
    assert done.returncode == 1


def ranks_doing(code: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        f"from himach.ranks.launch.parent_channel import ParentChannel\nrank = ParentChannel.from_env()\n{code}",
    ]


def test_work_goes_to_the_ranks_and_the_result_comes_back():
    work = os.urandom(3_000_000)
    assert spawn_ranks(ranks_doing("rank.publish_result(rank.work()[::-1])"), 1, work) == work[::-1]


def test_the_first_error_is_raised_in_its_own_class():
    code = "from himach.errors import TrajectoryError\nrank.fail(TrajectoryError('torn ' + 70_000 * 'x'))"
    with pytest.raises(TrajectoryError, match="torn x"):
        spawn_ranks(ranks_doing(code), 2, b"")


@pytest.mark.parametrize("code", ["pass", "open(rank._path(rank._result), 'wb').write(b'half')"])
def test_a_rank_that_ends_well_without_a_result_is_told(code):
    with pytest.raises(RankError, match="ended by itself with exit code 0 before the work"):
        spawn_ranks(ranks_doing(code), 1, b"")


def test_ranks_that_outlive_mpiexec_are_ended():
    """A process that mpiexec knows nothing of."""
    code = (
        "import subprocess, sys\n"
        "child = 'from himach.ranks.launch.parent_channel import ParentChannel; "
        "ParentChannel.from_env().die_with_parent(); print(1, flush=True); import time; time.sleep(60)'\n"
        "process = subprocess.Popen([sys.executable, '-c', child], stdout=-1, stderr=-3, start_new_session=True)\n"
        "process.stdout.readline()\n"
        "rank.publish_result(str(process.pid).encode())"
    )
    left = int(spawn_ranks(ranks_doing(code), 1, b""))
    assert wait_until(lambda: not is_alive(left), 2)


def test_segments_that_nobody_has_are_swept_and_no_others(tmp_path):
    began = time.time()
    for name in ("mpich_shm_1_0", "mpich_shm_2_0", "mpich_shar_tmpA1b2C3", "others"):
        (tmp_path / name).write_text("x")
    holder = f"f = open({str(tmp_path / 'mpich_shm_2_0')!r}); print(1, flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        segments.sweep(began + 100, shared=tmp_path)  # all are older
        assert len(os.listdir(tmp_path)) == 4
        segments.sweep(began, shared=tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["mpich_shm_2_0", "others"]
        process.kill()


def test_segments_of_a_process_that_is_dying_are_swept(tmp_path):
    began, path = time.time(), tmp_path / "mpich_shm_1_0"
    path.write_text("x")
    holder = f"f = open({str(path)!r}); print(1, flush=True); import time; time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        segments.sweep(began, shared=tmp_path)
        assert not path.exists()


def test_old_segments_that_no_process_has_are_swept(tmp_path, monkeypatch):
    """What a step of SLURM leaves that was killed with all its processes."""
    for name in ("mpich_shm_1_0", "mpich_shm_2_0", "sm_segment.1"):
        (tmp_path / name).write_text("x")
    segments.sweep_stale(tmp_path)  # they are new
    assert len(os.listdir(tmp_path)) == 3
    monkeypatch.setattr(segments, "STALE_SECONDS", -10.0)
    with open(tmp_path / "mpich_shm_2_0"):
        segments.sweep_stale(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["mpich_shm_2_0", "sm_segment.1"]


def test_ranks_that_start_sweep_old_segments():
    left = Path("/dev/shm", f"mpich_shm_himach_{os.getpid()}")
    left.touch()
    code = (
        "from himach.ranks import mpi, segments\n"
        "segments.STALE_SECONDS = -10.0\n"
        "if mpi.connect().comm.rank == 0: rank.publish_result(b'')"
    )
    try:
        spawn_ranks(ranks_doing(code), 2, b"")
        assert not left.exists()
    finally:
        left.unlink(missing_ok=True)


def test_the_names_of_segments_go_while_ranks_use_them():
    """Two ranks of a run have shared memory, and nothing of it has a name that a kill would leave."""
    code = (
        "import json, os\n"
        "from pathlib import Path\n"
        "from himach.ranks.mpi import connect\n"
        "world = connect()\n"
        "world.comm.barrier()\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "here = [word for word in maps.split() if word.startswith('/dev/shm/')]\n"
        "counter = world.make_counter()\n"
        "numbers = world.comm.gather([next(counter) for _ in range(3)])\n"
        "if world.comm.rank == 0:\n"
        "    there = [path for path in here if os.path.exists(path)]\n"
        "    rank.publish_result(json.dumps([len(here), there, sorted(sum(numbers, []))]).encode())"
    )
    used, left, numbers = json.loads(spawn_ranks(ranks_doing(code), 2, b""))
    assert used > 0
    assert left == []
    assert numbers == list(range(6))


def test_what_a_killed_run_leaves_in_shared_memory_is_swept():
    """Ranks that die before they could take the names away: mpiexec's keeper does."""
    code = (
        "import os, mpi4py.MPI as MPI\n"
        "from pathlib import Path\n"
        "MPI.COMM_WORLD.barrier()\n"
        "here = [word for word in Path('/proc/self/maps').read_text().split() if '/dev/shm/mpich' in word]\n"
        "assert here and all(map(os.path.exists, here))\n"
        "from himach.errors import RankError\n"
        "if MPI.COMM_WORLD.rank == 0: rank.fail(RankError(here[0]))\n"
        "MPI.COMM_WORLD.barrier()"
    )
    with pytest.raises(RankError, match="/dev/shm/") as raised:
        spawn_ranks(ranks_doing(code), 2, b"")
    assert not os.path.exists(str(raised.value))


def test_the_keeper_outlives_a_signal_and_ends():
    """SIGTERM to the whole group, as `spawn` sends it when the user interrupts."""
    starter = f"""
import signal
from himach.ranks.launch import pool as spawn
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 1.5)
try:
    spawn.spawn([{sys.executable!r}, "-c", "import time; time.sleep(60)"], 2, b"")
except KeyboardInterrupt:
    print("interrupted")
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.split() == ["interrupted"], done.stderr
    assert time.monotonic() - began < 10


class Gone(io.StringIO):
    """The output of a process whose reader has ended, as that of ``| head``."""

    def write(self, text):
        raise BrokenPipeError


def test_ranks_do_not_wait_for_a_reader_that_has_gone():
    reader, writer = os.pipe()
    ended, line = os.pipe()
    with os.fdopen(reader, "rb") as source:
        thread = relay(source, Gone(), ended, [])
        text = bytes(1 << 20)  # more than a pipe holds
        printing = threading.Thread(target=lambda: (os.write(writer, text), os.close(writer)), daemon=True)
        printing.start()
        printing.join(10)
        assert not printing.is_alive()
        thread.join(10)
        assert not thread.is_alive()
    os.close(line)
    os.close(ended)


def test_what_ranks_leave_behind_holds_up_no_end():
    """A child that keeps the pipe of its rank's output open, and prints on."""
    reader, writer = os.pipe()
    ended, line = os.pipe()
    sink = io.StringIO()
    with os.fdopen(reader, "rb") as source:
        os.write(writer, b"before ")
        thread = relay(source, sink, ended, [])
        os.write(writer, b"the end")
        os.close(line)
        thread.join(5)
        assert not thread.is_alive()
    assert sink.getvalue() == "before the end"
    os.close(writer)
    os.close(ended)


def test_what_follows_a_mark_is_kept_and_not_printed():
    reader, writer = os.pipe()
    ended, line = os.pipe()
    sink, rest = io.StringIO(), bytearray()
    with os.fdopen(reader, "rb") as source:
        thread = relay(source, sink, ended, [], b"\0mark", rest)
        for part in (b"text\0ma", b"t", b"\0m", b"ark\0ma", b"rest"):
            os.write(writer, part)
            assert wait_until(lambda: not select.select([reader], [], [], 0)[0])  # relayed by itself
        os.close(writer)
        thread.join(5)
    assert (sink.getvalue(), bytes(rest)) == ("text\0mat", b"\0marest")
    os.close(line)
    os.close(ended)


def test_a_process_ends_whose_poll_was_interrupted():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    process._waitpid_lock.acquire()  # as an interrupt between two instructions of poll() leaves it
    end(process)
    assert process.returncode in (-signal.SIGTERM, -signal.SIGKILL)


def test_a_process_that_is_gone_has_ended():
    process = subprocess.Popen(["true"], start_new_session=True)
    os.waitpid(process.pid, 0)  # somebody else took its status
    end(process)


@pytest.mark.parametrize("launcher", ["", "mpiexec"])
def test_a_missing_mpiexec_is_said_before_ranks_are_started(monkeypatch, tmp_path, launcher):
    monkeypatch.setattr("himach.ranks.launch.pool._beside", lambda: tmp_path / "mpiexec")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HIMACH_LAUNCHER", launcher)
    with pytest.raises(himach.HimachError, match=r"there is none: pip install 'himach\[local\]', or load"):
        himach.Ranks(2)
