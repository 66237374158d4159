"""Progress of one rank, what ranks print and warn of, lengths of time; ranks_parallel.py on three ranks."""

import contextlib
import io
import os
import pty
import sys
import termios
import threading
import time
import warnings
from pathlib import Path

import pytest
from support.ranks import mpiexec, run_under_mpiexec

from himach.errors import UsageError
from himach.ranks.communicator import Alone
from himach.ranks.duration import parse_duration, parse_seconds
from himach.ranks.progress import Progress, clock
from himach.ranks.quiet import MOST_TEXTS, collect_warnings, quiet_ranks


def test_on_three_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_parallel.py"), 3)


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
from himach.ranks.quiet import quiet_ranks
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
    done = mpiexec(2, [sys.executable, "-c", SPEAK], code=0)
    assert sorted(done.stdout.splitlines()) == ["from C 0", "from Python 0", "from the descriptor 0"]
    assert done.stderr.splitlines() == ["himach: warning: mind the gap", "himach: warning: and the step"]


def test_voices_return(capfd):
    shown = warnings.showwarning
    with quiet_ranks(1):
        print("unheard")
        os.write(1, b"unheard")
    assert warnings.showwarning is shown
    print("heard", flush=True)
    assert capfd.readouterr().out == "heard\n"


def test_warnings_of_one_line_are_shown_once_with_their_count():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with collect_warnings() as texts:
            for number in range(3000):
                warnings.warn(f"frame {number} is odd", stacklevel=1)
                if number % 1000 == 0:
                    warnings.warn("the same", RuntimeWarning, stacklevel=1)
    told = ["frame 0 is odd", "the same", "2,999 more like this: frame 0 is odd", "2 more like this: the same"]
    assert [str(one.message) for one in shown] == told
    assert texts == ["frame 0 is odd", "the same", *(f"frame {number} is odd" for number in range(1, MOST_TEXTS))]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3300", 3300),
        ("0.5", 0.5),
        ("55m", 3300),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("1.5h", 5400),
        ("2 days", 172800),
        ("1d2h3m4s", 93784),
        ("90s", 90),
        ("55:00", 3300),
        ("00:55:00", 3300),
        ("100:00:01", 360001),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        (" 55M ", 3300),
    ],
)
def test_a_length_of_time_is_read(text, seconds):
    assert parse_duration(text) == seconds


NO_TEXTS = ["", " ", "m", "55x", "5months", "-5", "1h-3m", "30m1h", "1:2:3:4", "1e3", "inf", "nan"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (NO_TEXTS, "max_time: .* is no length of time"),
        ([0, -1, "0", "0m", float("inf"), float("nan")], "max_time must be longer than nothing"),
        ([object()], "max_time is a number of seconds"),
    ],
)
def test_what_is_no_length_of_time_is_refused_by_name(values, message):
    for value in values:
        with pytest.raises(UsageError, match=message):
            parse_seconds(value, "max_time")
