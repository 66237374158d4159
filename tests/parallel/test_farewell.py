"""What is done before SIGTERM ends a process, and that children which user's code forks have nothing to do with it."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import os, signal, time
from himach.parallel.farewell import before_termination

with before_termination(lambda: print("kept", flush=True)):
    {within}
print("after", flush=True)
{later}
"""
FORKED = """child = os.fork()
    if child == 0:
        signal.pause()"""


def run(within: str, later: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(within=within, later=later)
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_the_last_thing_is_done_and_the_signal_ends_the_process():
    done = run("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)")
    assert (done.stdout, done.returncode) == ("kept\n", -signal.SIGTERM)


def test_afterwards_the_signal_is_the_systems():
    done = run("pass", "os.kill(os.getpid(), signal.SIGTERM)")
    assert (done.stdout, done.returncode) == ("after\n", -signal.SIGTERM)


def test_a_forked_child_ends_by_its_own_signal_alone():
    """As the workers of a multiprocessing.Pool do."""
    kill = "\n    time.sleep(0.2); os.kill(child, signal.SIGTERM); print(os.waitpid(child, 0)[1]); time.sleep(0.5)"
    done = run(FORKED + kill)
    assert (done.stdout, done.returncode) == (f"{int(signal.SIGTERM)}\nafter\n", 0)


def test_a_forked_child_that_lives_on_is_not_waited_for():
    done = run(FORKED, "os.kill(child, signal.SIGKILL)")
    assert (done.stdout, done.returncode) == ("after\n", 0)
