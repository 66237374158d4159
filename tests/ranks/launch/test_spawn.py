"""What ranks print is passed on, and nobody waits for a reader that has gone."""

from __future__ import annotations

import io
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ranks.launch.probes import all_folders

import himach
from himach.ranks.launch import spawn
from himach.ranks.launch.pool import RANK, RankPool, pack_work
from himach.ranks.launch.spawn import end, rank_environment, relay


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
    monkeypatch.setattr(spawn, "_beside", lambda: tmp_path / "mpiexec")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HIMACH_LAUNCHER", launcher)
    with pytest.raises(himach.HimachError, match=r"there is none: pip install 'himach\[local\]', or load"):
        himach.Ranks(2)


def test_a_task_of_a_step_may_be_where_no_folder_is():
    """The first task has that of the process that asks, and tells the others."""
    gone = 'if [ "$PMI_RANK" = 1 ]; then folder=$(mktemp -d); cd "$folder"; rmdir "$folder"; fi; exec ' + shlex.join(
        RANK
    )
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "fork", "-n", "2"]
    pool = RankPool([*mpiexec, "sh", "-c", f"{gone} step"], 2, environ=rank_environment())
    found = pickle.loads(pool.do(pack_work(all_folders), last=True))
    assert found == 2 * [os.getcwd()]
