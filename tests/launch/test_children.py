"""Children that work for this process: what they find comes back, none is left; and which process has none."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import numpy as np
import pytest
from support.commands import processes_with, wait_until

from himach.errors import RankError
from himach.launch.children import in_children


def found_of(size, work, watch=lambda done: None):
    with contextlib.closing(in_children(size, work, watch)) as children:
        return dict(children)


def children_of(process):
    with open(f"/proc/{process}/task/{process}/children") as file:
        return file.read().split()


def run(code):
    """Run a program that forks."""
    begin = "from himach.launch.children import *\nimport os, signal, sys, time, threading\n"
    return subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(code)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_what_each_found_comes_back():
    big = os.urandom(5 << 20)
    found = found_of(3, lambda number, count: bytes([number]) + big)
    assert found == {number: bytes([number]) + big for number in range(3)}
    assert found_of(1, lambda number, count: b"") == {0: b""}
    assert not children_of(os.getpid())


def test_how_far_they_are_is_seen():
    seen = []

    def work(number, count):
        for done in range(1, 6):
            count(done)
        return b""

    found_of(2, work, seen.append)
    assert seen[-1] == 10


def test_one_that_dies_is_told_and_the_others_are_ended():
    def work(number, count):
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(RankError, match="SIGKILL"):
        found_of(2, work)
    assert not children_of(os.getpid())


def test_one_that_leaves_by_itself_has_not_done_its_part(capfd):
    with pytest.raises(RankError, match="exit code 1"):
        found_of(1, lambda number, count: os._exit(0))
    assert "os._exit(0)" in capfd.readouterr().err


def test_who_wants_no_more_leaves_none():
    def work(number, count):
        if number:
            time.sleep(600)
        return b"first"

    with contextlib.closing(in_children(3, work)) as children:
        assert next(children) == (0, b"first")
        assert len(children_of(os.getpid())) == 2
    assert not children_of(os.getpid())


def test_no_descriptor_is_left():
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        found_of(2, lambda number, count: b"x")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_the_process_that_forked_them(signum, tmp_path):
    mark = uuid.uuid4().hex
    code = r"""
    import contextlib
    from himach.launch.children import in_children
    import os, time
    def work(number, count):
        os.write(1, b"here\n")
        time.sleep(600)
    with contextlib.closing(in_children(2, work)) as children:
        list(children)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "HIMACH_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
    process.send_signal(signum)
    process.wait(60)
    process.stdout.close()
    assert wait_until(lambda: not processes_with(mark), 30)


def test_signals_reach_children_and_parent_as_before():
    done = run("""
    signal.signal(signal.SIGINT, lambda signum, frame: print("interrupted", flush=True))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    def work(number, count):
        os.kill(os.getppid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # which the parent is there for
        return str(signal.pthread_sigmask(signal.SIG_BLOCK, []) == before).encode()
    print(list(in_children(1, work)))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    """)
    assert done.stdout == "interrupted\n[(0, b'True')]\n", done.stderr


def test_what_waits_to_be_printed_is_printed_once():
    done = run("""
    print("before", end="")
    for number, found in in_children(2, lambda number, count: print(f"<{number}>", end="") or b"x"):
        pass
    print("after")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("before") == done.stdout.count("<0>") == done.stdout.count("<1>") == 1


def test_each_draws_numbers_of_its_own():
    found = found_of(3, lambda number, count: np.random.random(4).tobytes())  # noqa: NPY002
    assert len(set(found.values())) == 3


def test_signals_of_children_may_be_ignored():
    done = run("""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(sorted(in_children(2, lambda number, count: b"x" * number)))
    """)
    assert done.stdout == "[(0, b''), (1, b'x')]\n", done.stderr


def test_what_the_parent_has_thrown_away_is_its_own_to_finalize():
    """A reader, say, that would wait for a thread which a child has not."""
    parent = os.getpid()

    class Waiting:
        def __del__(self):
            if os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

    circle = Waiting()
    circle.itself = circle
    del circle

    def work(number, count):
        import gc

        gc.collect()
        return b"alive"

    assert found_of(1, work) == {0: b"alive"}


def test_a_bar_that_is_watched_is_no_hindrance():
    done = run("""
    from tqdm import tqdm
    tqdm.monitor_interval = 0.001
    bar = tqdm(total=10, file=open(os.devnull, "w"), mininterval=0)
    assert threading.active_count() == 2 and not cannot_fork()
    for turn in range(100):
        for number, found in in_children(1, lambda number, count: tqdm.get_lock().acquire() and b"x"):
            assert found == b"x"
    with tqdm.get_lock():
        print(threading.active_count())
    """)
    assert done.stdout == "2\n", done.stderr


def test_why_a_process_cannot_be_forked():
    done = run("""
    print(cannot_fork() or "it can")
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="heartbeat")
    thread.start()
    print(cannot_fork())
    over.set()
    thread.join()
    os.environ["HIMACH_LAUNCHER"] = "mpiexec"
    print(cannot_fork())
    del os.environ["HIMACH_LAUNCHER"]
    from mpi4py import MPI
    print(cannot_fork())
    """)
    assert done.stdout.splitlines() == [
        "it can", "it has a thread heartbeat", "$HIMACH_LAUNCHER is mpiexec", "it has initialised MPI"
    ], done.stderr  # fmt: skip


def test_openmp_that_was_used_before_is_used_in_children():
    """GNU's OpenMP keeps threads, for which a child would wait for ever."""
    done = run("""
    import numpy as np
    from MDAnalysis.lib.distances import USED_OPENMP, distance_array
    a = np.random.default_rng(1).random((3000, 3), np.float32)
    sums = [float(distance_array(a, a, backend="OpenMP").sum())]
    work = lambda number, count: str(float(distance_array(a, a, backend="OpenMP").sum())).encode()
    sums += [float(found) for _, found in in_children(2, work)]
    print(USED_OPENMP, len({round(one) for one in sums}))
    """)
    assert done.stdout.split()[1] == "1", done.stderr


def test_an_interruption_while_one_is_forked_leaves_none():
    done = run("""
    import contextlib
    fork = os.fork

    def interrupted():
        process = fork()
        if process:
            os.kill(os.getpid(), signal.SIGINT)
        return process

    os.fork = interrupted
    descriptors = len(os.listdir("/proc/self/fd"))
    try:
        with contextlib.closing(in_children(2, lambda number, count: time.sleep(600))) as children:
            list(children)
    except KeyboardInterrupt:
        print("interrupted")
    print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split())
    print(len(os.listdir("/proc/self/fd")) - descriptors, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """)
    assert done.stdout.splitlines() == ["interrupted", "[]", "0 True"], done.stderr
