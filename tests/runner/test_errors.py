"""Every likely mistake ends all ranks within seconds, with the exit code and a message that names it."""

import re
import signal
import subprocess
import sys

import MDAnalysisTests.datafiles as data
import pytest
from runner.trials import SCRIPT, MarkedRun, fails, launch
from support.commands import DATA, himach, processes_with, wait_until, write_analysis
from support.needs import small_disk
from support.ranks import clean_environment

#: Where the script runs the code of its parameter.
LINE = f"line {next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if 'exec(compile' in line)}, in run"


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_outcome_that_the_disk_has_no_room_for_is_printed(tmp_path, ranks):
    with small_disk(tmp_path / "small", "size=40k") as disk:
        done = himach("run", "rmsd", *DATA, "-n", ranks, "--out", disk / "out")
        fails(done, "out lacks rmsd.png (No space left on device); make room there, or name another directory")
        assert "[98 rows]" in done.stdout
        assert sorted(path.name for path in (disk / "out").iterdir()) == ["rmsd.csv", "run.json"]


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(("method", "ranks"), [("setup", 2), ("map", 1), ("map", 2), ("reduce", 2), ("finish", 1)])
def test_an_exception_in_a_method_names_the_place_and_the_line(script, tmp_path, method, ranks):
    wrong = ["-p", f"at={method}", "-p", f"what=raise ValueError('{method} went wrong')"]
    done = himach("run", script, *DATA, "-n", ranks, *wrong, "--out", tmp_path / "out")
    fails(done, f"Probe.{method}()", f"ValueError: {method} went wrong", LINE)
    if method == "map":
        fails(done, "frame 40", "time", "rank")


def test_an_exception_without_a_text_names_the_place_and_the_line(script):
    mute = "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})"
    done = himach("run", script, *DATA, "-p", f"what={mute}")
    fails(done, "Probe.map()", "frame 40", "on rank", "Mute: its text cannot be shown", LINE)


@pytest.mark.parametrize("error", ["ValueError('no')", "SystemExit(7)"])
def test_an_exception_in_a_transformation_names_the_frame(script, error):
    done = himach("run", script, *DATA, "-p", "at=transformation", "-p", f"what=raise {error}")
    fails(done, "Probe.setup()'s transformations failed at frame 40", LINE)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_map_that_yields_nothing_is_told(tmp_path, ranks):
    path = write_analysis(tmp_path / "silent.py", "yield from ()", name="Silent")
    done = himach("run", path, *DATA, "-n", ranks, code=0)
    assert done.stderr.count("Silent: map() yielded nothing in any of the 98 frames, so there are no results") == 1


def test_a_script_with_no_analysis_or_two_is_told(tmp_path):
    none, two = tmp_path / "none.py", tmp_path / "two.py"
    none.write_text("x = 1\n")
    two.write_text("import himach\nclass A(himach.Analysis): ...\nclass B(himach.Analysis): ...\n")
    fails(himach("run", none, *DATA), "none.py", "no analysis", code=2)
    fails(himach("run", two, *DATA), "two.py:A", "two.py:B", code=2)
    fails(himach("run", f"{two}:C", *DATA), "'C'", code=2)


def test_a_script_that_cannot_be_run_is_told_with_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import himach\nx = (\n")
    fails(himach("run", path, *DATA), "broken.py", "line 2")
    path.write_text("import himach\nimport no_such_module\n")
    fails(himach("run", path, *DATA), "broken.py", "line 2", "no_such_module")


def test_a_reduce_that_yields_needs_a_stage_that_follows(tmp_path):
    path = write_analysis(tmp_path / "yields.py", "yield 'n', 1", reduce="(item for item in 'abc')", name="Yields")
    fails(himach("run", path, *DATA), "Yields.reduce()", "'n'", "`then`")


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_run_with_their_code_and_leave_no_rank(script, ranks, number, code):
    asleep = script.with_name("asleep")
    sleep = f"what=pathlib.Path({str(asleep)!r}).touch(); time.sleep(600)"
    command = launch("-n", ranks, "run", script, *DATA, "-p", sleep)
    run = MarkedRun(command, script.parent)
    try:
        assert wait_until(asleep.exists)
        assert len(processes_with(run.mark)) >= (3 if ranks > 1 else 1)
        run.process.send_signal(number)
        assert run.wait(50) == code, run.stderr()  # before map() wakes up
        assert "Traceback" not in run.stderr()
    finally:
        assert run.leftovers(60) == []


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("ulimit -f 1", r"(ulimit -f)|(File too large)"),
        ("mkdir gone; cd gone; rmdir ../gone", "working directory was removed"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_limits_of_the_process_are_named(tmp_path, shell, words, ranks):
    requested = ["run", "rmsd", "-t", data.XTC, "-s", data.GRO, "-n", ranks, "--out", tmp_path / "out"]
    command = ["sh", "-c", f'{shell}; exec "$@"', "sh", sys.executable, "-P", "-m", "himach", *map(str, requested)]
    environ = clean_environment(PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode in (1, 2), done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("himach: error: ") and re.search(words, last) and "Traceback" not in done.stderr


NESTED = """
import himach

class Nested(himach.Analysis):
    within: str = "map"

    def run(self, place):
        if place == self.within:
            inner = himach.run("radius-of-gyration", {trajectory!r}, {topology!r}, stop=2, cache="off", progress=False)
            return inner.record["frames"]
        return 0

    def setup(self, universe):
        self.n = self.run("setup")

    def map(self, frame):
        yield "n", self.n + self.run("map")

    def reduce(self, key, values):
        return max(value for _, value in values)

    def finish(self, results):
        return results["n"] + self.run("finish")
"""


@pytest.mark.parametrize(("within", "ranks"), [("setup", 2), ("map", 1), ("map", 2), ("finish", 2)])
def test_a_run_within_a_run_is_made_or_refused_but_never_waits(tmp_path, within, ranks):
    script = tmp_path / "nested.py"
    script.write_text(NESTED.format(trajectory=str(DATA[1]), topology=str(DATA[3])))
    done = himach("run", script, *DATA, "-n", ranks, "-p", f"within={within}", "--stop", 3, timeout=60)
    if within == "setup" or ranks == 1:
        assert done.returncode == 0, done.stderr
    else:
        code = 1 if within == "map" else 2  # what map() raises is its failure
        fails(
            done, "a run within map(), reduce() or finish() of a run on several ranks would need all of them", code=code
        )
