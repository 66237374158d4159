"""Files that an analysis opens count by their content: while its script is loaded, in setup() and in map()."""

from __future__ import annotations

import json
import os

import pytest
from checkpoint.sample import write_topology, write_trajectory
from support.commands import himach

from himach.checkpoint.opened_files import OpenedFiles

SCRIPT = """
import himach
import numpy as np
from pathlib import Path

LOADED = open("loaded.dat").read()

class Mine(himach.Analysis):
    def setup(self, universe):
        Path("setup.dat").read_text()
    def map(self, frame):
        import lazy
        exec(open("executed.py").read())
        with open("map.dat") as file:
            yield 1, len(file.read())
        with open("written.log", "a") as file:
            file.write("x")
    def reduce(self, key, series):
        return open("reduce.dat").read()
"""
FILES = ("loaded.dat", "setup.dat", "map.dat", "reduce.dat", "lazy.py", "executed.py")


@pytest.fixture
def place(tmp_path):
    write_trajectory(tmp_path / "run.xtc", 6)
    write_topology(tmp_path / "top.gro")
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in FILES:
        (tmp_path / name).write_text("1")
    return tmp_path


def run(place, ranks=1):
    words = ["run", "script.py", "-t", "run.xtc", "-s", "top.gro", "--cache", "off", "--pairs", "pairs", "--out", "out"]
    done = himach(*words, "-n", str(ranks), cwd=place)
    assert done.returncode == 0, done.stderr
    return json.loads((place / "out" / "run.json").read_text())["reused"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_opened_counts_by_its_content(place, name):
    assert run(place)["frames"] == 0
    os.utime(place / name, (1, 1))
    assert run(place, ranks=2)["frames"] == 6
    (place / name).write_text("2")
    reused = run(place)
    if name == "reduce.dat":
        assert reused["frames"] == 6
    else:
        assert reused["frames"] == 0
        assert f"{place / name}, which was opened, has another content" in reused["reason"]
    assert run(place)["frames"] == 6


def test_a_file_that_is_opened_now_and_was_not_counts(place):
    setup = "        Path('setup.dat').read_text()\n"
    choice = "        import os\n        Path(os.environ.get('SETUP', 'setup.dat')).read_text()\n"
    (place / "script.py").write_text(SCRIPT.replace(setup.replace("'", '"'), choice))
    run(place)
    (place / "other.dat").write_text("1")
    os.environ["SETUP"] = "other.dat"
    try:
        assert run(place)["reason"] == f"{place / 'other.dat'} is opened, and was not"
    finally:
        del os.environ["SETUP"]


def test_what_is_noted(tmp_path):
    for name in ("a.dat", "b.dat", "c.dat", "d.py", "run.xtc"):
        (tmp_path / name).write_text("1")
    files, state = OpenedFiles([tmp_path / "run.xtc"]), {"_mapping": False}
    files.mapping = [state]

    def read(name, mode="r"):
        with open(tmp_path / name, mode):
            pass

    read("a.dat")  # before
    with files.looking():
        for name in ("a.dat", "d.py", "run.xtc"):
            read(name)
        read("written.dat", "w")
        os.close(os.open(tmp_path / "b.dat", os.O_RDONLY))
    with files.watching():
        read("c.dat")  # map() does not run
        assert {os.path.basename(path) for path in files.digests} == {"a.dat", "b.dat", "d.py"}
        state["_mapping"] = True
        read("c.dat")
    state["_mapping"] = True
    read("written.dat")  # nobody looks
    assert {os.path.basename(path) for path in files.digests} == {"a.dat", "b.dat", "c.dat", "d.py"}
