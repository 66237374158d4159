"""What a run's code leaves in its ranks is not there in the next run over the same `himach.Ranks`."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from ranks.launch.probes import children, forker, found
from support.commands import processes_with, wait_until
from support.ranks import clean_environment

import himach

#: What code does, and what tells whether it did.
LEFT = {
    "directory": ("import os; os.chdir('/tmp')", "import os; found = os.getcwd()"),
    "signals": ("import signal as s; s.signal(s.SIGUSR2, s.SIG_IGN)", "import signal as s; found = s.getsignal(12)"),
    "limits": (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (300, r.getrlimit(r.RLIMIT_NOFILE)[1]))",
        "import resource as r; found = r.getrlimit(r.RLIMIT_NOFILE)",
    ),
    "redirected descriptor": (
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import os; found = os.readlink('/proc/self/fd/1')",
    ),
    "threads": (
        "import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()",
        "import threading as t; found = t.active_count()",
    ),
    "packages": (
        "import MDAnalysis; MDAnalysis.Universe.mine = 1",
        "import MDAnalysis; found = hasattr(MDAnalysis.Universe, 'mine')",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    with himach.Ranks(2) as ranks:
        yield ranks


@pytest.mark.nightly(but=["signals", "packages"])
@pytest.mark.parametrize("name", LEFT)
def test_what_a_run_sets_is_as_it_was_in_the_next(ranks, name):
    left, look = LEFT[name]
    before = found(ranks, look)
    process = forker(ranks)
    changed = found(ranks, f"{left}\n{look}")
    assert repr(changed) != repr(before), "the code changes nothing"
    assert repr(found(ranks, look)) == repr(before)
    assert forker(ranks) == process


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["random", "numpy.random"])
def test_random_numbers_are_not_those_of_the_run_before(ranks, module):
    draw = f"import {module} as r; found = r.random()"
    seeded = found(ranks, f"import {module} as r; r.seed(1); {draw}")
    second = found(ranks, f"import {module} as r; r.seed(1); r.random(); found = r.random()")
    assert found(ranks, draw) not in (seeded, second)


def test_directory_variables_and_mask_are_those_of_this_process_now(ranks, tmp_path, monkeypatch):
    look = "import os; found = os.getcwd(), os.environ.get('HIMACH_MINE'), os.environ.get('MINE')"
    first = found(ranks, look)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIMACH_MINE", "2")
    monkeypatch.setenv("MINE", "3")  # may be read by a library when it is loaded
    assert found(ranks, look) == (str(tmp_path), "2", "3")
    monkeypatch.undo()
    assert found(ranks, look) == first


class Empty(himach.Analysis):
    def map(self, frame):
        yield 1, 1

    def reduce(self, key, series):
        return len(series)


def test_an_edited_helper_and_script_count_as_they_are(ranks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for word in ("one", "two and more"):
        (tmp_path / "stay_helper.py").write_text(f"WORD = {word!r}")
        assert found(ranks, "import stay_helper; found = stay_helper.WORD") == word
    package = tmp_path / "stay_package"
    package.mkdir()
    (package / "part.py").write_text("WORD = 1")
    assert found(ranks, "import stay_package.part; found = stay_package.part.WORD") == 1
    (package / "part.py").write_text("WORD = 1000")
    assert found(ranks, "import stay_package.part; found = stay_package.part.WORD") == 1000


def test_what_a_class_of_a_cell_counted_is_forgotten(ranks):
    class Counts(Empty):
        seen = 0

        def finish(self, results):
            Counts.seen += 1
            Counts.more = getattr(Counts, "more", 0) + 1
            return Counts.seen, Counts.more

    for _ in range(3):
        assert himach.run(Counts, DCD, PSF, stop=2, cache="off", ranks=ranks).outcome == (1, 1)


@pytest.mark.nightly
def test_a_child_that_lives_on_holds_up_no_run(ranks):
    process = forker(ranks)
    code = "import subprocess; universe.mine = child = subprocess.Popen(['sleep', '60'])\nfound = child.pid"
    child = found(ranks, code)
    try:
        assert forker(ranks) == process
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_registered_for_the_end_is_done_in_the_run(ranks, tmp_path, capfd):
    file = tmp_path / "end"
    code = f"import atexit, pathlib; atexit.register(lambda: print('bye', file=open({str(file)!r}, 'a')))\nfound = 1"
    assert found(ranks, code) == 1
    assert file.read_text().splitlines() == ["bye", "bye"]
    assert found(ranks, "found = 2") == 2
    assert ranks.alive


def test_a_run_waits_for_threads_that_are_no_daemons(ranks, tmp_path):
    file = tmp_path / "late"
    code = textwrap.dedent(f"""
        import threading, time, pathlib
        def late():
            time.sleep(0.5)
            pathlib.Path({str(file)!r}).touch()
        threading.Thread(target=late).start()
    """)
    found(ranks, code)
    assert file.exists()


#: A rank, which says where it is.
RANK = """
import os, sys, time
from pathlib import Path
from himach.ranks.launch import rank_main
from himach.ranks import mpi, process_exit

moment, folder = os.environ["HIMACH_TEST_MOMENT"], os.environ["HIMACH_TEST_FOLDER"]
owner, name = {
    "within MPI_Init": (mpi, "_initialise"),
    "after MPI_Init": (mpi, "forget_segments"),
    "waiting": (process_exit, "promised_rank"),
    "working": (rank_main, "unpack_work"),
}[moment]
call = getattr(owner, name)

def report(*arguments):
    Path(folder, str(os.getpid())).touch()
    if moment in ("after MPI_Init", "working") or moment == "within MPI_Init" and os.environ["PMI_RANK"] == "1":
        time.sleep(60)
    return call(*arguments)

setattr(owner, name, report)
rank_main.main()
"""
PARENT = """
import sys, time
from himach.ranks.launch.pool import RankPool
from himach.ranks.launch.pool import pack_work

pool = RankPool([sys.executable, "-P", "-c", sys.argv[1]], 2)
if sys.argv[2] != "waiting":
    pool.do(pack_work(print), last=True)
while pool.alive:
    time.sleep(0.05)
pool.end()  # as the next run does
"""
MOMENTS = ["within MPI_Init", "after MPI_Init", "waiting", "working"]


def segments(process: int) -> set[str]:
    """Return names of shared memory that a process has."""
    words = Path(f"/proc/{process}/maps").read_text().split()
    return {word for word in words if word.startswith("/dev/shm/") and os.path.exists(word)}


@pytest.mark.nightly(but=5)
@pytest.mark.parametrize("victim", ["parent", "launcher", "rank"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_is_left_where_one_is_killed(mark, tmp_path, victim, moment):
    environ = {"HIMACH_TEST_MOMENT": moment, "HIMACH_TEST_FOLDER": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", PARENT, RANK, moment],
        env=clean_environment(**environ),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert wait_until(lambda: len(os.listdir(tmp_path)) == 2, 60)
        time.sleep(0.3)  # to where they sleep
        ranks = sorted(map(int, os.listdir(tmp_path)))
        names = set().union(*map(segments, ranks))
        assert bool(names) == (moment == "after MPI_Init") or moment == "within MPI_Init"
        (first,) = children(parent.pid)
        chosen = {"parent": parent.pid, "launcher": first, "rank": ranks[1]}[victim]
        os.kill(chosen, signal.SIGKILL)
        assert wait_until(lambda: set(processes_with(mark)) <= {parent.pid}, 15)
        parent.wait(15)
        assert wait_until(lambda: not any(map(os.path.exists, names)), 10), names
        assert victim == "parent" or moment == "waiting" or "RankError" in parent.stderr.read()
    finally:
        parent.kill()
        parent.communicate()
