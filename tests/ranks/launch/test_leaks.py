"""What a run's code leaves in its ranks is not there in the next run over the same `himach.Ranks`."""

from __future__ import annotations

import os
import signal
import textwrap

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from ranks.launch.probes import forker, found

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
