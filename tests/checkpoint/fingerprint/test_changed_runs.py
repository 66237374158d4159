"""A run that died is not gone on with under another map, of which the files that an analysis opens are part."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.cache_data import make

from himach.errors import AnalysisError
from himach.runner.commands import RunCommand, on_ranks

N_FRAMES = 4
SCRIPT = """
import himach, os
import numpy as np
from pathlib import Path
from MDAnalysis.transformations import translate

LOADED = open("loaded.dat").read()

class Mine(himach.Analysis):
    def setup(self, u):
        u.trajectory.add_transformations(translate(np.load("shift.npy")))
        Path("setup.dat").read_text()
        if Path("new.dat").exists():
            Path("new.dat").read_text()
    def map(self, frame):
        if frame.number == int(os.environ.get("BAD", -1)):
            raise ValueError("not finished")
        import lazy
        exec(open("executed.py").read())
        n = float(open("map.dat").read())
        with open("written.log", "a") as file:
            file.write("x")
        yield frame.number, (float(frame.positions[0, 0]), n * 7)
    def reduce(self, key, series):
        return open("reduce.dat").read() + str(series.values)
"""
FILES = ("loaded.dat", "setup.dat", "map.dat", "reduce.dat", "lazy.py", "executed.py")


@pytest.fixture(autouse=True)
def place(place, monkeypatch):
    make(place, N_FRAMES, "run.xtc")
    np.save("shift.npy", [0.0, 0, 1])
    for name in FILES:
        Path(name).write_text("1")
    Path("script.py").write_text(SCRIPT)
    monkeypatch.setenv("HIMACH_KEEP_EVERY", "0")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return place


def run(**options):
    """Run the script as the command does, in this process; return what the record says of reused frames."""
    for name in ("lazy", "himach_script_script"):
        sys.modules.pop(name, None)
    options = {"trajectories": (Path("run.xtc"),), "topology": Path("top.gro"), "cache": "off", "quiet": True} | options
    _, record = on_ranks(RunCommand(("script.py",), (), (), options, None, time.time()))
    return record["reused"]


def write(name, text):
    return lambda: Path(name).write_text(text)


#: What changes, and what is said of it.
CHANGES = {
    "nothing": (lambda: None, ""),
    "times of files": (lambda: [os.utime(name, (1, 1)) for name in FILES], ""),
    "a file of reduce()": (write("reduce.dat", "2"), ""),
    "the code": (write("script.py", SCRIPT.replace("n * 7", "n + 7")), "the script was changed"),
    **{
        f"{name} that was opened": (write(name, "2"), f"{name}, which was opened, has another content")
        for name in FILES
        if name != "reduce.dat"
    },
    "a file that was not there": (write("new.dat", "1"), "new.dat is opened, and was not"),
    "a transformation": (lambda: np.save("shift.npy", [0.0, 5, 1]), "shift.npy, which was opened, has another content"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_that_died_goes_on_where_its_map_is_the_same(monkeypatch, capsys, change):
    monkeypatch.setenv("BAD", str(N_FRAMES - 1))
    with pytest.raises(AnalysisError, match="not finished"):
        run(out=Path("out"))
    monkeypatch.delenv("BAD")
    capsys.readouterr()
    make, reason = CHANGES[change]
    make()
    reused = run(out=Path("out"))
    if reason:
        assert reused["frames"] == 0 and reason in reused["reason"]
    else:
        assert reused == {"frames": N_FRAMES - 1, "reason": ""}
    lines = [line.partition(" frames")[0] for line in capsys.readouterr().err.splitlines()]  # though it is quiet
    assert lines == ([] if reason else [f"himach: {N_FRAMES - 1} of {N_FRAMES}"])
    assert run(out=Path("fresh"))["frames"] == 0
    assert Path("out/Mine.csv").read_text() == Path("fresh/Mine.csv").read_text()
