"""What all tests share: a frame store of their own, larger trajectories where there are any, the order of tests."""

import os
import random
import signal
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import needs
from support.commands import Preloaded
from support.durations import Durations
from support.preload import stand_in

import himach

# Ranks that wait poll, and here there may be more of them than cores: MPICH then lets them sleep in between. Where they
# do not, four ranks on two cores take ten times as long.
os.environ.setdefault("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1")
os.environ.setdefault("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "10")

# What a shell starts in the background ignores Ctrl-C, and so does all that it starts; tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a machine that others use, too. The examples are the same ones each time, so
# that a change answers for itself; "search" looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("himach", settings.get_profile("search"), derandomize=True)
settings.load_profile("himach")

#: Where fixtures of several folders lie.
pytest_plugins = ["support.servers"]

#: How the names of tests begin that one process runs, where several share the tests: one SLURM; what is built once.
TOGETHER = {
    "slurm": (
        "tests/checkpoint/test_slurm_jobs.py",
        "tests/runner/test_faults.py",
        "tests/runner/test_slurm.py",
        "tests/ranks/slurm/test_job_ranks.py",
    ),
    "built": ("tests/test_package.py",),
    "foreign": ("tests/io/trajectories/test_foreign.py",),
}

SHARED = Path(os.environ.get("HIMACH_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


# himach's processes are forked from one that has imported it.
stand_in(Preloaded)


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory, monkeypatch):
    """No test finds what another one, or the user, has cached."""
    folder = tmp_path_factory.mktemp("cache")
    if "LAB" in os.environ:  # a SLURM is up, with disks of its own for nodes
        folder = Path(os.environ["LAB"], "local", folder.name)
    monkeypatch.setenv("HIMACH_CACHE", str(folder / "store-{node}"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))


@pytest.fixture
def place(tmp_path):
    """Return where a store may be made."""
    return tmp_path / "store"


@pytest.fixture
def script(request, tmp_path):
    """Return the file of what the module of the test has as its SCRIPT."""
    path = tmp_path / "script.py"
    path.write_text(request.module.SCRIPT)
    return path


@pytest.fixture(scope="module")
def ranks():
    """Return two ranks that stay."""
    with himach.Ranks(2) as staying:
        yield staying


@pytest.fixture(autouse=True)
def interpreters(request, monkeypatch):
    """Commands and ranks of tests marked ``fresh`` start an interpreter, as a user's do."""
    monkeypatch.setattr(Preloaded, "fresh", request.node.get_closest_marker("fresh") is not None)


@pytest.fixture
def shared():
    """Return trajectory and topology by the name of a folder of the shared data, or skip the test."""
    files = {
        "kcsa2pot": ("fix_c_10ns-pro-2POT.xtc", "02-pro-2POT.pdb"),
        "nanopore": ("nanopore.xtc", "nanopore.pdb"),
        "villin": ("villin.xtc", "villin.pdb"),
    }

    def find(name):
        trajectory, topology = (SHARED / name / file for file in files[name])
        if not trajectory.exists():
            needs.skip(f"{name} in the folder that HIMACH_TEST_DATA names")
        return trajectory, topology

    return find


def pytest_addoption(parser):
    """Let tests be left out that have passed elsewhere, long ones be run, and durations be written down."""
    parser.addoption("--passed", metavar="FILE", help="Leave out the tests that this file names, each on a line.")
    parser.addoption("--nightly", action="store_true", help="Run what is marked nightly, too.")
    parser.addoption("--record-durations", action="store_true", help="Write tests/durations.json.")


def pytest_configure(config):
    """Measure what each file takes if that is to be recorded, where the tests are shared out or run by one process."""
    if config.option.nightly:
        os.environ["HIMACH_NIGHTLY"] = "1"
    if config.option.record_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(), "durations")


def pytest_collection_modifyitems(config, items):
    """Leave out what has passed and what is for the night; what takes longest comes first."""
    passed = set(Path(config.option.passed).read_text().splitlines()) if config.option.passed is not None else set()
    left_out = {item for item in items if item.nodeid in passed}
    if not config.option.nightly:
        tests = defaultdict(list)
        for item in items:
            tests[item.nodeid.partition("[")[0]].append(item)
        left_out |= set().union(*map(_nightly, tests.values()))
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    seconds = Durations.read()
    items.sort(key=lambda item: (not item.nodeid.startswith(TOGETHER["slurm"]), -seconds.get(_file(item.nodeid), 0)))


def _nightly(cases):
    """Return the cases of a test that run by night alone: all, or all but those named or so many drawn by its name."""
    mark = cases[0].get_closest_marker("nightly")
    if mark is None:
        return {case for case in cases if case.get_closest_marker("nightly")}
    each_time = mark.kwargs.get("but", 0)
    if isinstance(each_time, int):
        return set(random.Random(cases[0].originalname).sample(cases, max(len(cases) - each_time, 0)))
    return {case for case in cases if case.callspec.id not in each_time}


def _file(nodeid):
    return nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Start a process more than there are cores: many tests wait for processes of their own."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let one process run what is `TOGETHER`; pytest 9.2 does not see the groups that marks of xdist 3.8 make."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return next((group for group, names in TOGETHER.items() if nodeid.startswith(names)), nodeid)

    return Groups(config, log)


def pytest_sessionstart(session):
    """Tell each failure at once: all tests take long, and what ends them before their end may be a limit of time."""
    if terminal := session.config.pluginmanager.get_plugin("terminalreporter"):
        session.config.pluginmanager.register(_Failures(terminal))


class _Failures:
    def __init__(self, terminal):
        self._terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._terminal.write_line(f"\n{report.nodeid}: {report.when}", red=True)
            self._terminal.write_line("\n".join(line for line in report.longreprtext.splitlines() if line[:2] == "E "))


def pytest_terminal_summary(terminalreporter):
    """Say what was not run for want of which program; why else tests were skipped, pytest tells itself."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if report.longrepr]
    if wanted := needs.missing(reasons):
        terminalreporter.write_line(f"not run, for want of: {'; '.join(wanted)}", yellow=True)
