"""Whichever process of a run is killed, and whenever: no other is left, and no shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks.launch.probes import children
from support.commands import processes_with, wait_until
from support.ranks import clean_environment

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
