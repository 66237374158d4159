"""Values of classes of the user's own: a later run has them of the very classes that it itself has, or maps again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import himach
from support.ranks import clean_environment

from .sample import write_topology, write_trajectory

SCRIPT = """
import sys
import himach

class Point:
    def __init__(self, x):
        self.x = x

class Points(himach.Analysis):
    def map(self, frame):
        yield frame.number % 2, Point(frame.number)
    def reduce(self, key, series):
        return sum(value.x for value in series.values if isinstance(value, Point))
"""
CALL = """
def main(stop):
    result = himach.run(Points(), "run.xtc", "top.gro", cache="off", pairs="pairs", stop=stop)
    print(result.record["reused"]["frames"], *result.text().split("[")[0].split()[-4:])
"""


@pytest.fixture
def place(tmp_path):
    write_trajectory(tmp_path / "run.xtc", 6)
    write_topology(tmp_path / "top.gro")
    return tmp_path


def called(place: Path, program: str) -> tuple[str, str]:
    """Run a program; return its last line, and what it said of kept pairs."""
    done = subprocess.run(
        [sys.executable, *program.split()],
        cwd=place,
        env=clean_environment(PYTHONPATH=str(place)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1], "\n".join(line for line in done.stderr.splitlines() if "kept" in line)


def by_command(place: Path) -> None:
    data = ["--trajectory", place / "run.xtc", "--topology", place / "top.gro", "--cache", "off", "--quiet"]
    done = himach("run", place / "points.py:Points", *data, "--pairs", place / "pairs", "--stop", 4)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["command", "module"])
def test_a_script_that_is_imported_under_another_name(place, first):
    """Its classes are others; those of the other name may not even be there."""
    (place / "points.py").write_text(SCRIPT)
    (place / "call.py").write_text(f"import sys, himach\nfrom points import Points\n{CALL}\nmain(int(sys.argv[1]))\n")
    if first == "command":
        by_command(place)
        line, said = called(place, "call.py 6")
        assert "it has values of classes of himach_script_points, which this run has under another name" in said
        assert line == "0 0 6 1 9"
        assert called(place, "call.py 6")[0].startswith("6 ")
    else:
        assert called(place, "call.py 4")[0].startswith("0 ")
        by_command(place)
        assert called(place, "call.py 6")[0] == "4 0 6 1 9"


def test_classes_of_a_program_itself_are_others_in_the_next_run(place):
    (place / "program.py").write_text(SCRIPT + CALL + "if __name__ == '__main__':\n    main(int(sys.argv[1]))\n")
    for stop, result in ((4, "0 0 2 1 4"), (6, "0 0 6 1 9")):
        line, said = called(place, f"program.py {stop}")
        assert line == result
        assert "values of type Point are not kept" in said
        assert "put it in a module" in said
