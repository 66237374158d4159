"""What a run imports and starts, and what is left when it is killed while it starts."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path

import pytest
from support.commands import DATA, himach, processes_with, start_himach, wait_until

SCRIPT = """
import json, os, sys, himach

class Probe(himach.Analysis):
    def map(self, frame):
        yield frame.number, 1
    def reduce(self, key, series):
        return 1
    def finish(self, results):
        parent = open(f"/proc/{os.getppid()}/comm").read().strip()
        print(json.dumps({"parent": parent, "modules": sorted(sys.modules)}))
        return {}
"""
FORKED = b"himach.runner.rank_main"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "probe.py"
    path.write_text(SCRIPT)
    return path


def told(done) -> dict:
    """Return what the script found in the process of the first rank."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


@pytest.mark.parametrize("words", [[], ["-n", "1"]])
def test_a_run_on_one_rank_needs_no_mpi_and_little_else(script, words):
    modules = told(himach("run", script, *DATA, "--cache", "off", *words))["modules"]
    several = ("mpi4py", "himach.parallel.mpi", "himach.parallel.forking", "himach.keeping")
    assert not [name for name in (*several, "scipy.sparse", "scipy.spatial", "matplotlib") if name in modules]


@pytest.mark.parametrize(
    ("environ", "parent"),
    [
        ({}, "python"),
        ({"HIMACH_LAUNCHER": "mpiexec"}, "hydra_pmi_proxy"),
        ({"OPENBLAS_NUM_THREADS": "2"}, "hydra_pmi_proxy"),  # a process with threads is not forked
    ],
)
def test_ranks_are_forked_where_they_can_be(script, environ, parent):
    done = himach("run", script, *DATA, "--cache", "off", "-n", 2, **environ)
    assert told(done)["parent"].startswith(parent)


@pytest.mark.parametrize("who", ["starter", "launcher"])
@pytest.mark.parametrize("when", ["at once", "with ranks"])
def test_nothing_is_left_of_a_run_that_is_killed_while_it_starts(script, monkeypatch, who, when):
    mark = uuid.uuid4().hex
    monkeypatch.setenv("HIMACH_TEST_MARK", mark)
    least = {"at once": 1, "with ranks": 3}[when]

    def forked() -> list[int]:
        found = []
        for process in processes_with(mark):
            try:
                if FORKED in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
            except OSError:
                continue
        return sorted(found)

    process = start_himach("run", script, *DATA, "-n", "2", "--cache", "off")
    assert wait_until(lambda: len(forked()) >= least, 30)
    os.kill(process.pid if who == "starter" else forked()[0], signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    if who == "launcher":
        assert process.returncode == 1
        assert "a rank was killed by signal 9 (SIGKILL), and the other ranks of 2 were ended" in said
    assert wait_until(lambda: not processes_with(mark), 5)
