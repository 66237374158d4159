"""Every likely mistake ends all ranks within seconds, with the exit code and a message that names it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import MDAnalysisTests.datafiles as data
import pytest
from runner.trials import MarkedRun, launch
from support.commands import DATA, himach, processes_with, wait_until
from support.needs import small_disk
from support.ranks import clean_environment

SCRIPT = '''
import himach

class Probe(himach.Analysis):
    """Does what its parameter says, at frame 40."""
    what: str = "nothing"
    cutoff: float = 3.5

    def setup(self, universe):
        self.atoms = universe.select_atoms("name CA")
        if self.what == "setup":
            raise ValueError("setup went wrong")
        if self.what in ("transformation", "exit in a transformation"):
            universe.trajectory.add_transformations(self.transform)

    def transform(self, timestep):
        if timestep.frame == 40:
            raise ValueError("transformation went wrong") if self.what == "transformation" else SystemExit(7)
        return timestep

    def map(self, frame):
        if frame.number == 40:
            if self.what == "map":
                raise ValueError("map went wrong")
            if self.what == "mute":
                raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})
            if self.what == "kill":
                import os, signal
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "sleep":
                import os, pathlib, time
                pathlib.Path(os.environ["HIMACH_TEST_ASLEEP"]).touch()
                time.sleep(600)
        if self.what != "silence":
            yield "n", frame.number

    def reduce(self, key, series):
        if self.what == "reduce":
            raise ValueError("reduce went wrong")
        return (item for item in "abc") if self.what == "yield" else len(series)

    def finish(self, results):
        if self.what == "finish":
            raise ValueError("finish went wrong")
        return {"counts": {"n": [results["n"]]}}

'''


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def refused(done, code: int, *words: str) -> None:
    """The command ended with `code` and one message that holds `words`, and no traceback of himach's."""
    assert done.returncode == code, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("himach: error:") == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "BAD TERMINATION" not in done.stdout + done.stderr
    assert "MPI_Abort" not in done.stderr


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_outcome_that_the_disk_has_no_room_for_is_printed(tmp_path, ranks):
    with small_disk(tmp_path / "small", "size=40k") as disk:
        done = himach("run", "rmsd", *DATA, "-n", ranks, "--out", disk / "out")
        refused(done, 1, "out lacks rmsd.png (No space left on device); make room there, or name another directory")
        assert "[98 rows]" in done.stdout
        assert sorted(path.name for path in (disk / "out").iterdir()) == ["rmsd.csv", "run.json"]


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(("method", "ranks"), [("setup", 2), ("map", 1), ("map", 2), ("reduce", 2), ("finish", 1)])
def test_an_exception_in_a_method_names_the_place_and_the_line(script, tmp_path, method, ranks):
    done = himach("run", script, *DATA, "-n", ranks, "-p", f"what={method}", "--out", tmp_path / "out")
    refused(done, 1, f"Probe.{method}()", f"ValueError: {method} went wrong", f"line {line_of(f'{method} went wrong')}")
    if method == "map":
        refused(done, 1, "frame 40", "time", "rank")


def test_an_exception_without_a_text_names_the_place_and_the_line(script):
    done = himach("run", script, *DATA, "-p", "what=mute")
    refused(done, 1, "Probe.map()", "frame 40", "on rank", "Mute: its text cannot be shown", f"line {line_of('1 / 0')}")


@pytest.mark.parametrize("what", ["transformation", "exit in a transformation"])
def test_an_exception_in_a_transformation_names_the_frame(script, what):
    done = himach("run", script, *DATA, "-p", f"what={what}")
    refused(done, 1, "Probe.setup()'s transformations failed at frame 40", f"line {line_of('else SystemExit(7)')}")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_map_that_yields_nothing_is_told(tmp_path, ranks):
    path = tmp_path / "silent.py"
    path.write_text(SCRIPT.replace('"n": [results["n"]]', '"n": [1]'))
    done = himach("run", path, *DATA, "-n", ranks, "-p", "what=silence", code=0)
    assert done.stderr.count("Probe: map() yielded nothing in any of the 98 frames, so there are no results") == 1


ATOMS = Path(data.DCD).name, Path(data.GRO).name, "3341", "47681"


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["rmsd", "--trajectory", data.DCD, "--topology", "/nowhere/b.gro"], ["/nowhere/b.gro"]),
        (["/nowhere/c.py", *DATA], ["/nowhere/c.py"]),
        (["rmsd", *DATA, "--start", "98"], ["98 frames", "start 98"]),
        (["rmsd", *DATA, "--step", "0"], ["step"]),
        (["rmsd", "--trajectory", data.DCD, "--topology", data.GRO], ATOMS),
        (["rmsd"], ["--trajectory"]),
    ],
)
def test_what_cannot_be_run_is_named(words, messages):
    refused(himach("run", *words), 2, *messages)


def test_a_script_with_no_analysis_or_two_is_told(tmp_path):
    none, two = tmp_path / "none.py", tmp_path / "two.py"
    none.write_text("x = 1\n")
    two.write_text("import himach\nclass A(himach.Analysis): ...\nclass B(himach.Analysis): ...\n")
    refused(himach("run", none, *DATA), 2, "none.py", "no analysis")
    refused(himach("run", two, *DATA), 2, "two.py:A", "two.py:B")
    refused(himach("run", f"{two}:C", *DATA), 2, "'C'")


def test_a_script_that_cannot_be_run_is_told_with_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import himach\nx = (\n")
    refused(himach("run", path, *DATA), 1, "broken.py", "line 2")
    path.write_text("import himach\nimport no_such_module\n")
    refused(himach("run", path, *DATA), 1, "broken.py", "line 2", "no_such_module")


def test_a_reduce_that_yields_needs_a_stage_that_follows(script):
    refused(himach("run", script, *DATA, "-p", "what=yield"), 1, "Probe.reduce()", "'n'", "`then`")


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_run_with_their_code_and_leave_no_rank(script, ranks, number, code):
    asleep = script.with_name("asleep")
    command = launch("-n", ranks, "run", script, *DATA, "-p", "what=sleep")
    run = MarkedRun(command, script.parent, HIMACH_TEST_ASLEEP=str(asleep))
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
        refused(done, code, "a run within map(), reduce() or finish() of a run on several ranks would need all of them")
