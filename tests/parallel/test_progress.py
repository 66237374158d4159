"""Progress on one rank, and on several under mpiexec."""

import contextlib
import io
import os
import pty
import sys
import termios
import time
import warnings
from pathlib import Path

import pytest
from support.ranks import mpiexec, run_under_mpiexec

from himach.parallel.communicator import Alone
from himach.parallel.progress import Progress, clock

HERE = Path(__file__).parent


@pytest.mark.nightly
def test_under_mpiexec():
    run_under_mpiexec(HERE / "ranks_progress.py", 3)


def test_a_call_is_cheap():
    progress = Progress(Alone(), 10**6, io.StringIO())
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for done in range(20_000):
            progress(done)
        best = min(best, (time.perf_counter() - start) / 20_000)
    assert best < 1e-6


@pytest.mark.parametrize("size", [(24, 80), (0, 0)])
def test_a_bar_on_a_terminal(monkeypatch, size):
    """Also on one that does not know its size, as that of a container."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        progress = Progress(Alone(), 5, stream)
        for done in range(1, 6):
            progress(done)
        progress.finish()
    shown = written_to(ours)
    assert "5/5" in shown
    assert "frames/s" in shown


def written_to(terminal: int) -> str:
    """Read what was written to a terminal that is closed at the other end by now; it comes in pieces."""
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so that it was all
        while piece := os.read(terminal, 10_000):
            shown += piece
    os.close(terminal)
    return shown.decode()


def test_a_stream_that_ends_on_a_terminal(monkeypatch):
    monkeypatch.setenv("HIMACH_PROGRESS", "tty")
    stream = io.StringIO()
    with Progress(Alone(), 5, stream, unit="file") as progress:
        progress(5)
    assert "5/5" in stream.getvalue()
    assert "files/s" in stream.getvalue()


def test_a_closed_stream_does_not_end_the_run(monkeypatch):
    monkeypatch.setenv("HIMACH_PROGRESS", "tty")
    stream = io.StringIO()
    with Progress(Alone(), 5, stream) as progress:
        progress(1)
        stream.close()
        time.sleep(0.15)
        progress(2)


def test_no_threads_are_started(monkeypatch):
    import threading

    monkeypatch.setenv("HIMACH_PROGRESS", "tty")
    before = set(threading.enumerate())
    with Progress(Alone(), 5, io.StringIO()) as progress:
        progress(5)
        assert set(threading.enumerate()) == before
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3725, "1:02:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text


SPEAK = """
import ctypes, os, sys, warnings
from mpi4py import MPI
from himach.parallel.quiet import quiet_ranks
comm = MPI.COMM_WORLD
with quiet_ranks(comm.rank, command=True):
    print("from Python", comm.rank, flush=True)
    ctypes.CDLL(None).printf(b"from C %d\\n", comm.rank)
    os.write(1, b"from the descriptor %d\\n" % comm.rank)
    warnings.simplefilter("always")
    for _ in range(3):
        warnings.warn("mind\\nthe gap")
    warnings.warn("and the step")
ctypes.CDLL(None).fflush(None)
comm.barrier()
"""


def test_rank_0_speaks_for_all():
    done = mpiexec(2, [sys.executable, "-c", SPEAK])
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["from C 0", "from Python 0", "from the descriptor 0"]
    assert done.stderr.splitlines() == ["himach: warning: mind the gap", "himach: warning: and the step"]


def test_voices_return(capfd):
    import warnings

    from himach.parallel.quiet import quiet_ranks

    shown = warnings.showwarning
    with quiet_ranks(1):
        print("unheard")
        os.write(1, b"unheard")
    assert warnings.showwarning is shown
    print("heard", flush=True)
    assert capfd.readouterr().out == "heard\n"


def test_warnings_of_one_line_are_shown_once_with_their_count():
    from himach.parallel.quiet import MOST_TEXTS, heard

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with heard() as texts:
            for number in range(3000):
                warnings.warn(f"frame {number} is odd", stacklevel=1)
                if number % 1000 == 0:
                    warnings.warn("the same", RuntimeWarning, stacklevel=1)
    told = ["frame 0 is odd", "the same", "2,999 more like this: frame 0 is odd", "2 more like this: the same"]
    assert [str(one.message) for one in shown] == told
    assert texts == ["frame 0 is odd", "the same", *(f"frame {number} is odd" for number in range(1, MOST_TEXTS))]
