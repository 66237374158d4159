"""The life of `himach.Ranks`: what ends them, who may use them, and that nothing is left of them."""

import contextlib
import gc
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from ranks.launch.probes import at_frame, forker, found, kill_soon, launcher_of, number_in, pid, waiting
from support.commands import processes_with, wait_until
from support.ranks import clean_environment, mpiexec

import himach


@pytest.fixture(scope="module")
def shared():
    with himach.Ranks(2) as ranks:
        yield ranks


def test_each_run_has_ranks_of_its_own_that_one_process_forks_and_none_is_left(mark):
    with himach.Ranks(2) as ranks:
        assert repr(ranks) == "<himach.Ranks: 2 ranks, waiting>"
        assert ranks.alive and ranks.size == 2
        assert pid(ranks) != pid(ranks)
        assert forker(ranks) == forker(ranks)
        first = waiting(ranks)
        assert pid(ranks) in first
        result = himach.run(himach.examples.load("rmsd"), DCD, PSF, cache="off", ranks=ranks)
        assert result.record["ranks"] == 2
        again = himach.run(himach.examples.load("rmsd"), DCD, PSF, cache="off", ranks=2)
        for one, other in zip(result.outcome["rmsd"].values(), again.outcome["rmsd"].values(), strict=True):
            np.testing.assert_array_equal(one, other)
    assert not processes_with(mark)
    assert repr(ranks) == "<himach.Ranks: 2 ranks, closed>"
    with pytest.raises(himach.UsageError, match=r"were closed; make new ones: himach.Ranks\(2\)"):
        pid(ranks)
    ranks.close()


def test_a_number_of_ranks_is_positive():
    with pytest.raises(himach.UsageError, match="1 or more"):
        himach.Ranks(0)


def test_ranks_that_nobody_knows_any_more_end(mark):
    ranks = himach.Ranks(1)
    pid(ranks)
    assert processes_with(mark)
    del ranks
    gc.collect()
    assert wait_until(lambda: not processes_with(mark), 5)


SCRIPT = f"""
import himach, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
ranks = himach.Ranks(2)
class Slow(himach.Analysis):
    seconds: float = 0.0
    def map(self, frame):
        time.sleep(self.seconds)
        yield 1, 1
    def reduce(self, key, series):
        return len(series)
def run(seconds):
    print("began", flush=True)
    himach.run(Slow(seconds=seconds), {str(DCD)!r}, {str(PSF)!r}, cache="off", stop=4, ranks=ranks)
"""


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, None])
@pytest.mark.parametrize("seconds", [0, 60])
def test_nothing_is_left_when_the_process_ends(mark, number, seconds):
    code = f"{SCRIPT}\nrun(0)\nrun({seconds})\nprint('done', flush=True)\nif {number}: time.sleep(60)"
    if number is None and seconds:
        code = f"{SCRIPT}\nrun(0)\nraise ValueError"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )
    with process:
        expected = ["began"] if number is None and seconds else ["began", "began"] + ["done"] * (not seconds)
        for word in expected:
            assert process.stdout.readline() == f"{word}\n"
        assert processes_with(mark)
        if number is not None:
            time.sleep(0.5)  # what comes just before a process sleeps does not wake it
            process.send_signal(number)
        process.wait(15)
    assert wait_until(lambda: not processes_with(mark), 5)


def test_a_child_of_fork_holds_up_no_end_and_may_not_run(mark):
    code = f"""{SCRIPT}
run(0)
import os
child = os.fork()
if child == 0:
    try:
        run(0)
    except himach.UsageError as error:
        print(error, ranks.alive, flush=True)
    ranks.close()
    time.sleep(60)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=clean_environment())
    with process:
        lines = [process.stdout.readline() for _ in range(3)]
        assert "those of the process that forked this one" in lines[2] and lines[2].endswith("False\n")
        before = processes_with(mark)
        process.kill()
        assert wait_until(lambda: len(processes_with(mark)) == 1, 5), (before, processes_with(mark))
        for child in processes_with(mark):
            os.kill(child, signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["rank", "what forks them"])
def test_ranks_that_were_killed_while_they_waited_are_replaced(mark, victim):
    with himach.Ranks(2) as ranks:
        before = waiting(ranks)
        os.kill(before[1] if victim == "rank" else forker(ranks), signal.SIGKILL)
        assert wait_until(lambda: not ranks.alive, 5)
        assert repr(ranks) == "<himach.Ranks: 2 ranks, to be started by the next run>"
        assert pid(ranks) not in before
        assert ranks.alive
        assert wait_until(lambda: len(processes_with(mark)) < 8)


def test_a_run_whose_rank_is_killed_fails_and_the_next_one_works(mark, tmp_path):
    with himach.Ranks(2) as ranks:
        for i, who in enumerate((lambda rank: rank, launcher_of)):
            file = tmp_path / str(i)
            killer = threading.Thread(target=lambda file=file, who=who: os.kill(who(number_in(file)), signal.SIGKILL))
            killer.start()
            with pytest.raises(himach.RankError, match=r"killed by signal 9 \(SIGKILL\)|a rank"):
                at_frame(ranks, kill_soon(file))
            killer.join()
            assert not ranks.alive
            assert at_frame(ranks, "pass")


FATAL = {
    "import os; os._exit(0)": "os._exit",
    "import ctypes; ctypes.CDLL(None)._exit(0)": "ended by itself at frame 40 with exit code 0 before the work",
    "import ctypes; ctypes.string_at(0)": "SIGSEGV",
    "import os; os.abort()": "SIGABRT",
    "raise SystemExit(3)": "SystemExit",
}


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("code", FATAL)
def test_however_a_rank_ends_the_run_fails_as_with_new_ranks(shared, code):
    with pytest.raises(himach.HimachError) as new:
        at_frame(2, code)
    with pytest.raises(himach.HimachError) as staying:
        at_frame(shared, code)
    assert type(staying.value) is type(new.value)
    assert FATAL[code] in str(new.value)
    strip = lambda error: re.sub(r"rank \d", "rank N", str(error))  # noqa: E731 - whichever has the frame
    assert strip(staying.value) == strip(new.value)
    assert found(shared, "found = 1") == 1


def test_after_an_error_that_all_ranks_have_the_next_are_forked(shared):
    process = forker(shared)
    for _ in range(3):
        with pytest.raises(himach.AnalysisError, match=r"map\(\) failed at frame 40.*ZeroDivisionError"):
            at_frame(shared, "1/0")
        with pytest.raises(himach.UsageError, match="no trajectory"):
            himach.run(himach.examples.load("rmsd"), "/nowhere.xtc", PSF, ranks=shared)
    assert forker(shared) == process


def test_a_run_of_another_thread_is_refused_meanwhile(shared):
    refused = []

    def second():
        time.sleep(0.3)
        try:
            pid(shared)
        except himach.UsageError as error:
            refused.append((str(error), repr(shared)))

    thread = threading.Thread(target=second)
    thread.start()
    found(shared, "import time; time.sleep(1)")
    thread.join()
    ((text, shown),) = refused
    assert "busy with a run of another thread" in text
    assert shown == "<himach.Ranks: 2 ranks, running>"


def test_an_interrupted_run_ends_at_once_and_the_next_works(mark):
    with himach.Ranks(2) as ranks:
        pid(ranks)
        for code in ("import time; time.sleep(60)", "import ctypes; ctypes.PyDLL(None).sleep(60)"):
            timer = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT))
            timer.start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                at_frame(ranks, code)
            assert time.monotonic() - began < 8
            assert wait_until(lambda: not processes_with(mark), 1)
            assert found(ranks, "found = 1") == 1


def test_what_ranks_print_is_printed_where_this_run_prints(shared):
    for word in ("one", "two"):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found(
                shared,
                "import os, sys\n"
                f"for i in range(20000): print('{word}', i)\n"
                f"os.system('echo {word} of a child')\nos.write(2, b'{word} below')",
            )
        lines = out.getvalue().splitlines()
        assert [line for line in lines if "child" not in line] == [f"{word} {i}" for i in range(20000)]
        assert f"{word} of a child" in lines
        assert f"{word} below" in err.getvalue()


def test_under_a_launcher_its_ranks_are_meant(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}\nrun(0)\nrun(0)\nprint(ranks)\nranks.close()")
    done = mpiexec(2, [sys.executable, str(script)], timeout=60, code=0)
    assert done.stdout.count("<himach.Ranks: 2 ranks, waiting>") == 2
    script.write_text(f"{SCRIPT.replace('Ranks(2)', 'Ranks(3)')}\nrun(0)")
    done = mpiexec(2, [sys.executable, str(script)], timeout=60)
    assert "3 ranks, but a launcher started 2; leave" in done.stderr


class Counted(himach.Analysis):
    """The number of frames."""

    def map(self, frame):
        yield "frames", 1

    def reduce(self, key, values):
        return len(values)


@pytest.mark.parametrize("regular", [True, False])
def test_what_else_has_the_name_of_a_module_is_not_taken_for_it(shared, tmp_path, monkeypatch, regular):
    package = tmp_path / Counted.__module__.partition(".")[0]  # some packages install their tests as `tests`
    package.mkdir()
    if regular:
        (package / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert himach.run(Counted(), DCD, PSF, cache="off", ranks=shared, stop=4).outcome["result"].tolist() == [4]
