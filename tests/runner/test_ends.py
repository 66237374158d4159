"""However a rank, a run or its launcher ends: nobody waits, the code says so, and nothing is left in the way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from runner.trials import SCRIPT, MarkedRun, fails, launch  # noqa: F401 - of the fixture script
from support.commands import DATA, himach, processes_with, start_himach, wait_until, write_analysis
from support.ranks import mpiexec

from himach.ranks.process_exit import guard_os_exit

TWO_RUNS = """
import os, sys, himach
from himach.ranks.process_exit import promised_rank

himach.run("rmsd", sys.argv[1], sys.argv[2], cache="off", stop=4)
if promised_rank() == 1:
    exec(sys.argv[3])
himach.run("rmsd", sys.argv[1], sys.argv[2], cache="off", stop=4)
if promised_rank() == 0:
    print("both")
"""

CAUGHT = """
import sys, himach
from himach.ranks.process_exit import promised_rank

try:
    himach.run("rmsd", sys.argv[1], sys.argv[2], cache="off", step=0)
except himach.HimachError:
    if promised_rank() != int(sys.argv[4]):
        raise
exec(sys.argv[3])
"""


@pytest.mark.fresh
def test_keyboard_interrupt_is_a_failure_of_a_rank_and_interrupts_a_process_alone(script):
    words = ["run", script, *DATA, "-p", "what=raise KeyboardInterrupt"]
    fails(himach(*words, "-n", 2), "map()", "KeyboardInterrupt")
    assert himach(*words, code=130).stderr.strip() == "himach: interrupted"


def test_an_interrupt_while_mdanalysis_is_imported_waits_for_the_end_of_that(tmp_path):
    """Else no run of the same notebook could import what has been imported by half."""
    program = (
        "import os, signal, sys, himach\nfrom himach.examples import load\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *arguments):\n"
        "        if name == 'MDAnalysis.topology.PDBParser': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"run = lambda: himach.run(load('rmsd'), {DATA[1]!r}, {DATA[3]!r}, cache='off', stop=2, progress=False)\n"
        "try:\n    run()\nexcept KeyboardInterrupt:\n    print('interrupted', run().record['frames'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("interrupted 2\n", 0), done.stderr


def test_children_of_user_code_exit_as_ever(script):
    what = "child = os.fork() or os._exit(7); assert os.waitpid(child, 0)[1] == 7 << 8"
    himach("run", script, *DATA, "-p", f"what={what}", code=0)


def test_os_exit_is_refused_behind_a_run_within_a_run(script):
    inner = f"himach.run(himach.examples.load('rmsd'), {str(DATA[1])!r}, {str(DATA[3])!r}, cache='off', stop=2)"
    what = f"{inner}; os._exit(0)"
    fails(himach("run", script, *DATA, "-p", f"what={what}"), "os._exit(0)")


def test_os_exit_is_refused_to_the_end_of_a_run_of_another_thread():
    begun, ended, refused = threading.Event(), threading.Event(), []

    def second():
        with guard_os_exit():
            begun.set()
            assert ended.wait(10)
            try:
                os._exit(0)
            except SystemExit as error:
                refused.append(str(error))

    thread = threading.Thread(target=second)
    with guard_os_exit():
        thread.start()
        assert begun.wait(10)
    ended.set()
    thread.join()
    assert refused == ["os._exit(0)"]


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("at", "nodes"), [("_pass", 1), ("_pass", 2), ("_read", 2)])
def test_a_rank_without_memory_in_the_exchange_ends_all(script, at, nodes):
    """Before others have what it sends, and after."""
    words = ["run", str(script), *DATA, "--cache", "off", "-p", "what=raise MemoryError('no room')", "-p", f"at={at}"]
    node = f'HIMACH_NODE=n$((PMI_RANK % {nodes})) exec "$0" -m himach "$@"'
    done = mpiexec(3, ["sh", "-c", node, sys.executable, *words], timeout=60)
    fails(done, f"rank 1 on node n{1 % nodes} had no memory left for the pairs that ranks exchange (no room)")


def test_a_rank_that_is_killed_in_the_exchange_ends_all(script):
    kill = ["-p", "at=_pass", "-p", "what=os.kill(os.getpid(), 9)"]
    done = himach("run", script, *DATA, "-n", 2, "--cache", "off", *kill)
    fails(done, "killed", code=done.returncode or 1)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("what", ["raise ValueError('mine')", "sys.exit(0)", "sys.exit(3)", "os._exit(0)"])
def test_a_rank_that_leaves_between_two_runs_ends_all(tmp_path, what):
    script = tmp_path / "two.py"
    script.write_text(TWO_RUNS)
    done = mpiexec(2, [sys.executable, str(script), DATA[1], DATA[3], what])
    assert done.returncode == 1, done.stderr
    assert ("ValueError: mine" if "mine" in what else "rank 1 of 2 ended before this run began") in done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("what", ["", "himach.run('rmsd', sys.argv[1], sys.argv[2], cache='off', stop=1)"])
@pytest.mark.parametrize("catching", [0, 1])
def test_an_error_that_one_rank_catches_and_another_does_not_ends_all(tmp_path, what, catching):
    script = tmp_path / "caught.py"
    script.write_text(CAUGHT)
    done = mpiexec(2, [sys.executable, str(script), DATA[1], DATA[3], what, str(catching)], timeout=60)
    assert done.returncode in (1, 2), done.stderr
    assert "step must not be 0" in done.stderr
    assert not what or f"rank {1 - catching} of 2 ended before this run began" in done.stderr


def test_a_script_of_which_ranks_ran_two_versions_is_refused(script, tmp_path):
    changed = tmp_path / "changed" / script.name
    changed.parent.mkdir()
    changed.write_text(script.read_text() + "# later\n")
    run = [sys.executable, "-P", "-m", "himach", "run"]
    done = mpiexec(1, [*run, str(script), *DATA, ":", "-n", "1", *run, str(changed), *DATA])
    fails(done, f"{changed} is not what the first rank has run", code=2)


def test_a_script_is_run_as_it_is_whatever_was_compiled_before(tmp_path):
    script = tmp_path / "mine.py"
    for key in ("alpha", "gamma"):  # texts of one size, and within one second
        write_analysis(script, f"yield '{key}', 1")
        os.utime(script, (0, 0))
        done = himach("run", script, *DATA, "--stop", "1", "--cache", "off", "--quiet")
        assert key in done.stdout, done


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "himach", "run", "rmsd", "--bogus"], "No such option"),
        (["-m", "himach", "cache"], "Usage:"),
        (["-c", "import himach; himach.run('nope', 'x.xtc')"], "error: there is no analysis 'nope'"),
        (["-c", "import himach; himach.run('rmsd', 'x.xtc', step=0)"], "error: step must not be 0"),
    ],
)
def test_wrong_usage_is_told_once(words, message):
    done = mpiexec(3, [sys.executable, "-P", *words])
    assert done.stderr.count(message) == 1 and "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


def test_a_script_that_one_node_has_not_is_told_by_its_rank(script):
    run = [sys.executable, "-P", "-m", "himach", "run"]
    command = [*run, str(script), *DATA, ":", "-n", "1", "-env", "HIMACH_NODE", "bare", *run, "/nowhere.py", *DATA]
    done = mpiexec(1, command)
    fails(done, "there is no script /nowhere.py (on rank 1 of 2, node bare)", code=2)


@pytest.mark.nightly
@pytest.mark.slow
def test_ranks_that_hang_in_setup_hold_up_no_failure_of_another(script):
    what = "time.sleep(60 * (promised_rank() == 0)); raise ValueError('words')"
    began = time.monotonic()
    done = himach("run", script, *DATA, "-n", 2, "-p", "at=setup", "-p", f"what={what}")
    fails(done, "Probe.setup() failed on rank 1: ValueError: words")
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_ranks_end_when_what_stands_between_them_and_mpiexec_is_killed(script):
    run = MarkedRun(launch("mpiexec", 2, "run", script, *DATA, "-p", "what=time.sleep(600)"), script.parent)
    assert wait_until(lambda: len(processes_with(run.mark)) > 3, 30)
    time.sleep(3)
    for process in processes_with(run.mark):
        if Path("/proc", str(process), "comm").read_text().startswith("hydra_pmi_proxy"):
            os.kill(process, signal.SIGKILL)
    assert run.leftovers(60) == []
    assert run.wait(10)


def test_a_killed_runs_directory_is_taken_by_the_next(script, tmp_path):
    out = tmp_path / "out"
    process = start_himach("run", script, *DATA, "-p", "what=time.sleep(60)", "--out", out)
    assert wait_until((out / ".himach" / "new").exists, 30)
    refused = himach("run", script, *DATA, "--out", out)
    fails(refused, "another run writes there (process ", code=2)
    process.kill()
    process.communicate()
    failed = himach("run", script, *DATA, "--out", out, "-p", "what=1/0")
    fails(failed, "ZeroDivisionError")
    himach("run", script, *DATA, "--out", out, code=0)
    assert sorted(os.listdir(out)) == ["counts.csv", "run.json"]
    assert json.loads((out / "run.json").read_text())["files"] == ["counts.csv"]
