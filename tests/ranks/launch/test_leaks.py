"""What a run's code leaves in its ranks is not there in the next run over the same `himach.Ranks`."""

from __future__ import annotations

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
    "variable": ("import os; os.environ['MINE'] = '1'", "import os; found = os.environ.get('MINE')"),
    "lost variable": ("import os; del os.environ['PATH']", "import os; found = 'PATH' in os.environ"),
    "umask": ("import os; os.umask(0)", "import os; found = os.umask(0o22)"),
    "numpy errors": ("import numpy; numpy.seterr(all='raise')", "import numpy; found = numpy.geterr()"),
    "numpy printing": ("import numpy; numpy.set_printoptions(2)", "import numpy; found = str(numpy.ones(1) / 3)"),
    "warnings": ("import warnings; warnings.simplefilter('error')", "import warnings; found = warnings.filters[0]"),
    "signals": ("import signal as s; s.signal(s.SIGUSR2, s.SIG_IGN)", "import signal as s; found = s.getsignal(12)"),
    "masked": (
        "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, [10])",
        "import signal as s; found = list(s.pthread_sigmask(s.SIG_BLOCK, []))",
    ),
    "alarm": ("import signal; signal.alarm(30)", "import signal; found = signal.alarm(0)"),
    "path": ("import sys; sys.path.insert(0, '/mine')", "import sys; found = '/mine' in sys.path"),
    "finders": ("import sys; sys.meta_path.append(5)", "import sys; found = 5 in sys.meta_path"),
    "depth": ("import sys; sys.setrecursionlimit(5000)", "import sys; found = sys.getrecursionlimit()"),
    "builtins": ("import builtins; builtins.mine = 1", "import builtins; found = hasattr(builtins, 'mine')"),
    "main": ("import __main__; __main__.mine = 1", "import __main__; found = hasattr(__main__, 'mine')"),
    "figures": (
        "from matplotlib import pyplot; pyplot.figure()",
        "from matplotlib import pyplot; found = pyplot.get_fignums()",
    ),
    "style": (
        "import matplotlib; matplotlib.rcParams['font.size'] = 99",
        "import matplotlib; found = matplotlib.rcParams['font.size']",
    ),
    "attributes": (
        "from MDAnalysis.core.topologyattrs import AtomStringAttr\n"
        "class Mine(AtomStringAttr): attrname, singular = 'mines', 'mine'",
        "import MDAnalysis; found = 'mines' in MDAnalysis._TOPOLOGY_ATTRS",
    ),
    "logging": ("import logging; logging.basicConfig(level=10)", "import logging; found = logging.root.level"),
    "limits": (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (300, r.getrlimit(r.RLIMIT_NOFILE)[1]))",
        "import resource as r; found = r.getrlimit(r.RLIMIT_NOFILE)",
    ),
    "stdout": ("import sys; sys.stdout = None", "import sys; found = sys.stdout is None"),
    "decimal": ("import decimal; decimal.getcontext().prec = 3", "import decimal; found = decimal.getcontext().prec"),
    "start method": (
        "import multiprocessing as m; m.set_start_method('spawn')",
        "import multiprocessing as m; found = m.get_start_method(allow_none=True)",
    ),
    "time zone": (
        "import os, time; os.environ['TZ'] = 'XST-7'; time.tzset()",
        "import time; found = time.tzname",
    ),
    "closed stdout": ("import sys; sys.stdout.close()", "import sys; found = sys.stdout.closed"),
    "closed descriptor": (
        "import os; os.close(0)",
        "import os\ntry: found = os.fstat(0) and 'open'\nexcept OSError: found = 'closed'",
    ),
    "redirected descriptor": (
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import os; found = os.readlink('/proc/self/fd/1')",
    ),
    "loggers": (
        "import logging; logging.getLogger('MDAnalysis').setLevel(50)",
        "import logging; found = logging.getLogger('MDAnalysis').level",
    ),
    "standard library": (
        "import textwrap; textwrap.dedent = str.upper",
        "import textwrap; found = textwrap.dedent('  one')",
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
def test_a_thread_ends_with_its_run(ranks):
    process = forker(ranks)
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nfound = 5"
    assert found(ranks, code) == 5
    assert found(ranks, "import threading; found = threading.active_count()") == 1
    assert forker(ranks) == process


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


def test_what_loggers_hold_back_is_written_at_the_end_of_the_run(ranks, tmp_path):
    file = tmp_path / "log"
    code = textwrap.dedent(f"""
        import logging.handlers as handlers, logging
        target = logging.FileHandler({str(file)!r})
        logging.getLogger("mine").addHandler(handlers.MemoryHandler(100, target=target))
        logging.getLogger("mine").error("held back")
    """)
    found(ranks, code)
    assert file.read_text().splitlines() == ["held back"] * 2


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


def test_objects_of_a_run_are_gone(ranks):
    look = "import gc, MDAnalysis as m; found = sum(isinstance(each, m.Universe) for each in gc.get_objects())"
    assert [found(ranks, look) for _ in range(3)] == [1, 1, 1]


#: A rank, which says where it is.
RANK = """
import os, sys, time
from pathlib import Path
from himach.ranks.launch import rank_main
from himach.ranks.launch.parent_channel import ParentChannel
from himach.ranks import mpi

moment, folder = os.environ["HIMACH_TEST_MOMENT"], os.environ["HIMACH_TEST_FOLDER"]
owner, name = {
    "within MPI_Init": (mpi, "_initialise"),
    "after MPI_Init": (mpi, "forget_segments"),
    "waiting": (ParentChannel, "wait"),
    "working": (rank_main, "do_work"),
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

pool = RankPool([sys.executable, "-P", "-c", sys.argv[1]], 2, forks=True)
if sys.argv[2] != "waiting":
    pool.do(pack_work(print), last=True)
while pool.alive:
    time.sleep(0.05)
pool.end()  # as the next run does
"""
MOMENTS = ["within MPI_Init", "after MPI_Init", "waiting", "working"]
VICTIMS = {"": ["parent", "launcher", "rank"], "mpiexec": ["parent", "keeper", "mpiexec", "rank"]}


def segments(process: int) -> set[str]:
    """Return names of shared memory that a process has."""
    words = Path(f"/proc/{process}/maps").read_text().split()
    return {word for word in words if word.startswith("/dev/shm/") and os.path.exists(word)}


@pytest.mark.nightly(but=5)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("launcher", "victim"), [(one, victim) for one in VICTIMS for victim in VICTIMS[one]])
def test_nothing_is_left_where_one_is_killed(mark, tmp_path, launcher, victim, moment):
    environ = {"HIMACH_TEST_MOMENT": moment, "HIMACH_TEST_FOLDER": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", PARENT, RANK, moment],
        env=clean_environment(HIMACH_LAUNCHER=launcher, **environ),
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
        chosen = {
            "parent": parent.pid,
            "launcher": first,
            "keeper": first,
            "mpiexec": children(first)[0],
            "rank": ranks[1],
        }[victim]
        os.kill(chosen, signal.SIGKILL)
        assert wait_until(lambda: set(processes_with(mark)) <= {parent.pid}, 15)
        parent.wait(15)
        assert wait_until(lambda: not any(map(os.path.exists, names)), 10), names
        assert victim == "parent" or moment == "waiting" or "RankError" in parent.stderr.read()
    finally:
        parent.kill()
        parent.communicate()
