"""What SIGUSR1, SIGTERM and a deadline do to a process that maps, alone and as one of several ranks."""

import signal
import subprocess
import sys
import time

import pytest
from support.ranks import mpiexec

from himach.ranks.launch.stop_requests import StopRequests

PROGRAM = """
import os, signal, sys, time
from himach.ranks.process_exit import promised_rank, promised_ranks
from himach.ranks.launch import stop_requests
from himach.ranks.launch.stop_requests import StopRequests, Terminated, relay_signals, sigusr1_ignored, terminate

ME = os.getpid()

def kill(signum, process=ME):
    os.kill(process, signum)

def frames(asked, n=400, seconds=0.01):
    "A map loop."
    for _ in range(n):
        time.sleep(seconds)
        if asked.commit:
            asked.commit = False
            print("committed", flush=True)
        if asked.ending:
            print("last commit", flush=True)
            asked.exit_process()
        if asked.time_up:
            print("time is up", flush=True)
            break

asked = StopRequests(None, lambda: print("kept", flush=True))
{code}
"""
UNWINDS = """
signal.signal(15, terminate)
try:
    with asked:
        asked.handled = {handled}; kill(15); frames(asked)
except Terminated:
    print("unwound")
assert signal.getsignal(15) is terminate
"""
FOREIGN = """
signal.signal({signum}, lambda *_: print("mine", flush=True))
with asked:
    asked.handled = True; kill({signum}); time.sleep(0.1)
"""
OTHER_THREAD = """
import threading
def work():
    with StopRequests(time.time() + 0.2, print) as asked:
        print(signal.getsignal(15) == signal.SIG_DFL)
        frames(asked)
thread = threading.Thread(target=work); thread.start(); thread.join()
"""
WRITTEN_BY_THREAD = """
stop_requests.COMES = 0.2
with StopRequests(None, lambda: (time.sleep(1), print("kept", flush=True))) as asked:
    asked.handled = True; kill(15); time.sleep(0.5)
    asked.exit_process()
"""
CHILD_COMES_BACK = """
try:
    with asked:
        if os.fork() == 0:
            raise SystemExit(0)
        os.wait(); kill(15); time.sleep(20)
except SystemExit:
    os._exit(0)
"""
SPARED = """
with sigusr1_ignored():
    kill(10)
    with asked:
        kill(10); frames(asked, 1)
    kill(10)
print("after", flush=True)
kill(10)
"""
FORKED = """
with asked:
    child = os.fork()
    if child == 0:
        signal.pause()
"""
AFTERWARDS = """
with asked:
    pass
print(signal.getsignal(10) == signal.getsignal(15) == signal.SIG_DFL, flush=True)
kill(15)
"""
WAKEUP = r"""
r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)
with asked:
    kill(10); frames(asked, 1); print(signal.getsignal(15) == signal.SIG_DFL)
print(os.read(r, 10) == b"\n", signal.set_wakeup_fd(-1) == w)
"""
RELAYED = """
try:
    with relay_signals(lambda signum: print("passed on", flush=True)):
        kill(10); time.sleep(0.1); kill(15); time.sleep(20)
finally:
    print("after")
"""
FAILS = "with StopRequests(None, lambda: os.close(99)):\n    kill(15); time.sleep(20)"
KILLED = "    time.sleep(0.2); kill(15, child); print(os.waitpid(child, 0)[1]); time.sleep(0.5)\nprint('after')"
TERM = -signal.SIGTERM
#: What a program does, what it prints, and how it ends.
PROGRAMS = {
    "SIGTERM that is not handled has the last thing done": ("with asked:\n    kill(15); time.sleep(20)", "kept", TERM),
    "SIGTERM that is handled ends the map loop": (
        "with asked:\n    asked.handled = True; kill(15); frames(asked)",
        "last commit",
        TERM,
    ),
    "SIGUSR1 ends nothing": (
        "with asked:\n    kill(10); frames(asked, 3); kill(10); frames(asked, 3)\nprint('after')",
        "committed, committed, after",
        0,
    ),
    "a main thread that does not come is not waited for": (
        "stop_requests.COMES = 0.3\nwith asked:\n    asked.handled = True; kill(15); time.sleep(20)",
        "kept",
        TERM,
    ),
    "what another thread writes is waited for": (WRITTEN_BY_THREAD, "kept", TERM),
    "a command alone unwinds, handled": (UNWINDS.format(handled=True), "last commit, unwound", 0),
    "a command alone unwinds, not handled": (UNWINDS.format(handled=False), "unwound", 0),
    "SIGUSR1 of other code stays its own": (FOREIGN.format(signum=10), "mine", 0),
    "SIGTERM of other code stays its own": (FOREIGN.format(signum=15), "mine", 0),
    "in another thread only the deadline counts": (OTHER_THREAD, "True, time is up", 0),
    "a forked child ends by its own signal alone, as in a multiprocessing.Pool": (FORKED + KILLED, "15, after", 0),
    "a forked child that lives on is not waited for": (FORKED + "print('after')\nkill(9, child)", "after", 0),
    "a forked child that comes back from map() leaves the parent its thread": (CHILD_COMES_BACK, "kept", TERM),
    "a run is spared by SIGUSR1 before and after it maps": (SPARED, "committed, after", -signal.SIGUSR1),
    "a last thing that fails holds nothing up": (FAILS, "", TERM),
    "SIGTERM of the last frame is heeded behind it": (
        "with asked:\n    asked.handled = True; kill(15)\nprint('after')",
        "",
        TERM,
    ),
    "afterwards signals are whose they were": (AFTERWARDS, "True", TERM),
    "a wakeup descriptor that is somebody else's stays his": (WAKEUP, "committed, True, True True", 0),
    "a starter passes on one signal and ends by the other after it has cleaned up": (RELAYED, "passed on", TERM),
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(code=code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_signals(name):
    code, words, status = PROGRAMS[name]
    done = run(code)
    assert (done.stdout.splitlines(), done.returncode, done.stderr) == (words.split(", ") if words else [], status, "")


@pytest.mark.parametrize(
    "code",
    [
        """
stop_requests.COMES, stop_requests.LIMIT = 0.3, 0.6
with StopRequests(None, lambda: time.sleep(30)) as asked:
    asked.handled = True; kill(15); time.sleep(20)
""",
        """
stop_requests.LIMIT = 0.5
with asked:
    asked.handled = True; kill(15); time.sleep(0.1)
    asked._meet, asked._comm = lambda comm: time.sleep(20), 1  # the main thread is on its way
    asked.exit_process()
""",
    ],
    ids=["the last thing", "a commit"],
)
def test_what_takes_too_long_is_not_waited_for(code):
    began = time.monotonic()
    assert run(code).returncode == TERM
    assert time.monotonic() - began < 5


def test_a_deadline_is_a_property_of_a_moment():
    assert not StopRequests(None, print).time_up
    assert not StopRequests(time.time() + 5, print).time_up
    assert StopRequests(time.time() - 1, print).time_up


RANKS = """
import os, signal, sys, time
from himach.ranks.launch import stop_requests
from himach.ranks.mpi import connect
world = connect()
rank, size = world.comm.rank, world.comm.size
stop_requests.COMES, stop_requests.LIMIT = 1.0, 4.0

def say(word):
    os.write(1, f"rank {{rank}} {{word}}\\n".encode())  # at once, beside others

with stop_requests.StopRequests(None, lambda: say("kept"), comm=world.comm) as asked:
    asked.handled = True
    world.comm.barrier()
    os.kill(os.getpid(), signal.SIGTERM)
    {first}
    say("left")
    asked.exit_process()
"""


@pytest.mark.parametrize(
    ("first", "words", "least", "most"),
    [
        ("time.sleep(rank * 0.4)", ["rank 0 left", "rank 1 left", "rank 2 left"], 0.8, 3.5),
        ("time.sleep(60 if rank == 1 else 0)", ["rank 0 left", "rank 1 kept", "rank 2 left"], 3.5, 8),
    ],
)
def test_ranks_end_together_and_with_143(first, words, least, most):
    """The first that ends has the launcher end all; one that hangs is not waited for too long."""
    began = time.monotonic()
    done = mpiexec(3, [sys.executable, "-c", RANKS.format(first=first)])
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == words, done.stderr
    assert done.returncode in (143, 9)  # the launcher kills who is slower to end, and may tell of that
    assert least < time.monotonic() - began < most + 3
