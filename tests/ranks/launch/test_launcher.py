"""A process that becomes ranks of MPI: what they are answered, line by line, and however one of them ends, all do."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.commands import processes_with, wait_until
from support.ranks import clean_environment

from himach.ranks.launch.launcher import KeyValues, speaks_pmi

FORK = """
import json, os, sys, time
from himach.ranks.mpi import connect, load
load()
from himach.ranks.launch.launcher import fork_ranks
fork_ranks({size})
"""
CONNECT = "comm = connect().comm\n"


def start(code: str, mark: str, size: int = 2, before: str = "", connect: str = CONNECT) -> subprocess.Popen[str]:
    """Start ranks that do this; return their launcher, which ends with its standard input."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", before + FORK.format(size=size) + connect + code],
        env=clean_environment(HIMACH_TEST_MARK=mark),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    code: str, mark: str, size: int = 2, before: str = "", connect: str = CONNECT
) -> subprocess.CompletedProcess[str]:
    """Run ranks that do this, to their end."""
    process = start(code, mark, size, before, connect)
    kept, process.stdin = process.stdin, None  # communicate() would close it
    with process, kept:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_ranks_know_each_other_and_draw_different_numbers(mark):
    code = (
        "import numpy as np, random, threading\n"
        "drawn = [len(set(comm.allgather(one))) for one in (np.random.random(), random.random())]\n"
        "parents = set(comm.allgather(os.getppid()))\n"
        "total = comm.allreduce(comm.rank)\n"
        "if comm.rank == 0: print(json.dumps([comm.size, total, drawn, len(parents)]))"
    )
    done = run(code, mark, 5, before="import numpy.random, random\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [5, 10, [5, 5], 1]


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), 9)", 137),
        ("import ctypes; ctypes.string_at(0)", 139),
        ("import ctypes; ctypes.CDLL(None)._exit(0)", 0),
        ("from mpi4py import MPI; MPI.COMM_WORLD.Abort(7)", 7),
    ],
)
def test_a_rank_that_ends_before_its_part_is_done_ends_all(mark, ends, status):
    began = time.monotonic()
    late = "from himach.ranks import process_exit; os._exit = process_exit._exit_now\n"  # no word to the others
    done = run(f"{late}if comm.rank == 1:\n    {ends}\ncomm.barrier()", mark)
    assert done.returncode == status, done.stderr
    assert time.monotonic() - began < 30


def test_nothing_lies_in_shared_memory_afterwards(mark):
    code = (
        "from pathlib import Path\n"
        "here = {word for word in Path('/proc/self/maps').read_text().split() if word.startswith('/dev/shm/')}\n"
        "all = set().union(*comm.allgather(here))\n"
        "if comm.rank == 0: print(json.dumps(sorted(all)), flush=True)\n"
    )
    killed = "comm.barrier()\nif comm.rank == 1: os.abort()\ntime.sleep(600)"
    named = "from mpi4py import MPI\nMPI.Init()\ncomm = MPI.COMM_WORLD\n"  # names are there yet
    for connect, end in ((CONNECT, ""), (CONNECT, killed), (named, killed)):
        done = run(code + end, mark, 3, connect=connect)
        names = json.loads(done.stdout)
        assert names
        assert not [name for name in names if os.path.exists(name)]


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "gone"])
def test_ranks_end_with_their_launcher_and_with_who_started_it(mark, how):
    process = start("os.write(1, b'%d\\n' % os.getpid())\ntime.sleep(600)", mark)
    try:
        ranks = {int(process.stdout.readline()) for _ in range(2)}
        assert set(processes_with(mark)) == ranks | {process.pid}
        if how == "gone":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, how))
        assert wait_until(lambda: not processes_with(mark), 5)
        assert process.wait(5) == {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "gone": 1}[how]
    finally:
        process.kill()
        process.wait()


def test_ranks_that_cannot_all_be_started_are_none(mark):
    """The third fork fails, as at a limit of processes."""
    before = (
        "import os, itertools\n"
        "fork, count = os.fork, itertools.count()\n"
        "def some():\n"
        "    if next(count) == 2: raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    return fork()\n"
        "os.fork = some\n"
    )
    done = run("time.sleep(600)", mark, 4, before)
    assert done.returncode == 1
    assert "only 2 of 4 ranks could be started: Resource temporarily unavailable" in done.stderr


def test_ranks_that_would_start_ranks_are_refused(mark):
    code = "from mpi4py import MPI\ntry: MPI.COMM_SELF.Spawn('true')\nexcept MPI.Exception: os.write(1, b'refused\\n')"
    done = run(code, mark)
    assert (done.stdout, done.returncode) == ("refused\nrefused\n", 0), done.stderr


@pytest.mark.parametrize(
    ("library", "speaks"),
    [
        ("MPICH Version: 5.0.2\nMPICH configure: --with-device=ch4:ucx,ofi --with-pm=hydra:gforker", True),
        ("MPICH Version: 4.1\nMPICH configure: --prefix=/opt/mpich", True),
        ("MPICH Version: 4.1\nMPICH configure: --with-pmi=slurm --with-pm=no", False),
        ("MPICH Version: 4.1\nMPICH configure: --with-pmix=/usr", False),
        ("MPI VERSION    : CRAY MPICH version 8.1.27.16", False),
        ("Open MPI v5.0.6", False),
        ("Intel(R) MPI Library 2021.11", False),
    ],
)
def test_libraries_that_ask_another_launcher_are_left_to_it(library, speaks):
    assert speaks_pmi(library) == speaks


def ask(values: KeyValues, rank: int, line: str) -> str:
    """Return the one answer that this rank gets."""
    ((to, answer),) = values.answer(rank, line)
    assert to == rank
    assert answer.endswith(b"\n")
    return answer.decode().rstrip("\n")


def test_what_one_rank_puts_others_get():
    values = KeyValues(2)
    assert ask(values, 0, "cmd=init pmi_version=1 pmi_subversion=1").endswith("pmi_version=1 pmi_subversion=1 rc=0")
    name = ask(values, 0, "cmd=get_my_kvsname").split("kvsname=")[1].split()[0]
    assert ask(values, 1, "cmd=get_my_kvsname").split("kvsname=")[1].split()[0] == name
    assert ask(values, 0, f"cmd=put kvsname={name} key=P0 value=a=b#c") == "cmd=put_result rc=0 msg=success"
    assert ask(values, 1, f"cmd=get kvsname={name} key=P0").endswith(" value=a=b#c")
    assert " rc=-1 " in ask(values, 1, f"cmd=get kvsname={name} key=P1")
    assert ask(values, 1, f"cmd=get kvsname={name} key=PMI_process_mapping").endswith("value=(vector,(0,1,2))")


def test_two_worlds_have_two_names():
    assert ask(KeyValues(1), 0, "cmd=get_my_kvsname") != ask(KeyValues(1), 0, "cmd=get_my_kvsname")


def test_a_barrier_opens_when_all_have_come_and_again():
    values = KeyValues(3)
    for _ in range(2):
        assert values.answer(2, "cmd=barrier_in") == []
        assert values.answer(0, "cmd=barrier_in") == []
        assert sorted(values.answer(1, "cmd=barrier_in")) == [(rank, b"cmd=barrier_out rc=0\n") for rank in range(3)]


def test_ends_are_noted():
    values = KeyValues(2)
    assert ask(values, 1, "cmd=finalize") == "cmd=finalize_ack rc=0"
    assert values.finalized == {1}
    assert values.aborted is None
    assert values.answer(0, "cmd=abort exitcode=7") == []
    assert values.aborted == 7


def test_what_is_not_served_is_refused_and_no_rank_waits():
    values = KeyValues(1)
    assert "rc=-1" in ask(values, 0, "cmd=lookup_name service=x")
    assert "rc=-1" in ask(values, 0, "cmd=made_up")
    for line in ("mcmd=spawn", "nprocs=1", "execname=true", "arg1=cmd=put"):
        assert values.answer(0, line) == []
    assert "rc=-1" in ask(values, 0, "endcmd")
    assert ask(values, 0, "cmd=get_appnum") == "cmd=appnum appnum=0 rc=0"
