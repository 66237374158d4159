"""Plots of the drawing process are those that are drawn where the outcome is; what it cannot draw is left."""

import signal
from pathlib import Path

import pytest
from support.commands import himach, run_python, start_himach, wait_until

from himach.examples import sample

pytestmark = pytest.mark.fresh  # a command that has Matplotlib already draws by itself
DATA = ("--trajectory", sample("nanopore").trajectory, "--topology", sample("nanopore").topology)
OWN = """
import gc, os, signal, sys, warnings
import himach
import MDAnalysis as mda
import numpy as np

SCALE = 2.0

def scaled(values):
    return SCALE * values

class Here(himach.Analysis):
    way: str = ""

    def setup(self, universe):
        self.group, self.words = universe.atoms[:1], "kept by setup()"
        if self.way == "style":
            import matplotlib

    def map(self, frame):
        yield 0, frame.positions[0, 0] + mda.units.constants["N_Avogadro"] * 0

    def reduce(self, key, series):
        return {"t": series.times, "x": series.values}

    def finish(self, results):
        self.more = "and by finish()"
        return results[0]

    def plot(self, outcome, axes):
        facts = os.getpid(), "MDAnalysis" in sys.modules, gc.isenabled()
        open(f"{self.way or 'plain'}.by", "a").write(" ".join(map(str, facts)) + "\\n")
        axes.plot(outcome["t"], scaled(np.array(outcome["x"])))
        axes.set_title(f"{self.words} {self.more}")
        if self.way == "group":
            axes.set_xlabel(f"{self.group.n_atoms} atoms")
        elif self.way == "warning":
            warnings.warn("seen once")
        elif self.way == "print":
            print("printed once")
        elif self.way == "stderr":
            print("printed once", file=sys.stderr)
        elif self.way == "exception":
            raise ValueError("plot went wrong")
        elif self.way == "exit":
            sys.exit(7)
        elif self.way == "hangs":
            signal.pause()
        elif self.way == "killed" and open("killed.by").read().count("\\n") == 1:
            os.kill(os.getpid(), 9)
"""
TWINS = """
import sys
from himach.output.figures.drawer import drawing

FORMATS = ["svg", "pdf", "png"]

with drawing() as drawer:
    from himach.output.figures.drawing_process import start_drawing
    from himach.output.figures.plots import render_plot as drawn_here
    import himach
    from himach.examples import load, sample
    FILTER = dict(top="index 110 246 382 518", bottom="index 59 195 331 467", radius=2.5)
    given = {
        "water-residence": ("nanopore", dict(solute="name K")), "ion-permeation": ("kcsa", FILTER),
        "rmsd": ("villin", {}),
        "rdf": ("nanopore", dict(a="name K", b="name O")), "msd": ("nanopore", {}), "hydrogen-bonds": ("villin", {}),
    }
    results = [himach.run(load(name)(**p), *sample(data), stop=20, cache="off") for name, (data, p) in given.items()]
    plots = [(result.labels[0], result.analyses[0], result.outcome) for result in results]
    assert not {"matplotlib"} & set(sys.modules)
    drawn = start_drawing(drawer, plots, FORMATS)()
    assert start_drawing(drawer, plots, FORMATS)() == [None] * len(plots), "it answers once"
for plot, files in zip(plots, drawn, strict=True):
    assert [one[1:4] for one in files] == [b"?xm", b"PDF", b"PNG"], plot[0]
    assert files == drawn_here(plot, FORMATS), plot[0]
    for file, kind in zip(files, FORMATS, strict=True):
        assert [file] == drawn_here(plot, [kind]), (plot[0], kind)
"""


@pytest.mark.nightly
def test_pictures_of_the_process_are_those_drawn_here():
    done = run_python("-c", TWINS)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["", "group", "warning", "print", "stderr", "exception", "exit", "killed", "style"])
def test_what_the_process_cannot_draw_is_drawn_by_the_run(tmp_path, way, ranks):
    script = tmp_path / "own.py"
    script.write_text(OWN)
    done = himach(
        "run", script, *DATA, "--stop", 3, "-n", ranks, "-p", f"way={way}", "--out", "out", cwd=tmp_path, code=0
    )
    drawers = [line.split() for line in (tmp_path / f"{way or 'plain'}.by").read_text().splitlines()]
    # The process does not import MDAnalysis; it is not asked where a style may have been set.
    assert [imported for _, imported, _ in drawers] == {"": ["False"], "style": ["True"]}.get(way, ["False", "True"])
    assert len({process for process, *_ in drawers}) == len(drawers)
    assert {collects for *_, collects in drawers} == {"True"}  # what is left of a plot goes before the next
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert ("Here.png" in files) == (way not in ("exception", "exit"))
    assert {"t.npy", "x.json", "run.json"} <= files
    for stream, word, kind in (
        (done.stderr, "seen once", "warning"), (done.stderr, "ValueError: plot went wrong", "exception"),
        (done.stderr, "SystemExit: 7", "exit"), (done.stdout, "printed once", "print"),
        (done.stderr, "printed once", "stderr"),
    ):  # fmt: skip
        assert stream.count(word) == (way == kind)


def test_an_interrupt_while_a_plot_is_drawn_loses_no_outcome(tmp_path):
    script, by = tmp_path / "own.py", Path("hangs.by")
    script.write_text(OWN)
    words = ["run", script, *DATA, "--stop", "3", "-p", "way=hangs", "--out", "out"]
    process = start_himach(*words, cwd=tmp_path)
    assert wait_until(lambda: (tmp_path / by).exists() and (tmp_path / by).read_text().endswith("\n"), 30)
    drawer = int((tmp_path / by).read_text().split()[0])
    assert drawer != process.pid
    staged = tmp_path / "out" / ".himach" / "new"
    assert wait_until(lambda: {"t.npy", "x.json"} <= {path.name for path in staged.iterdir()}, 30)
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=30)[1].strip(), process.returncode) == ("himach: interrupted", 130)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"run.json", "t.npy", "x.json"}
    assert not Path(f"/proc/{drawer}").exists()


@pytest.mark.nightly
def test_a_run_leaves_the_formats_that_it_is_asked_for_and_so_does_the_same_again(tmp_path):
    words = ("--figure", "pdf,svg", "-p", "selection=name K", "--stop", 5)
    himach("run", "rmsd", *DATA, *words, "--out", "one", cwd=tmp_path, code=0)
    himach("run", "--rerun", "one/run.json", "--out", "again", cwd=tmp_path, code=0)
    himach("run", "--rerun", "one", "--figure", "png", "--out", "other", cwd=tmp_path, code=0)
    files = {out: {path.name for path in (tmp_path / out).iterdir()} for out in ("one", "again", "other")}
    pictures = {out: names - {"run.json", "rmsd.csv"} for out, names in files.items()}
    assert pictures == {"one": {"rmsd.pdf", "rmsd.svg"}, "again": {"rmsd.pdf", "rmsd.svg"}, "other": {"rmsd.png"}}
    for name in pictures["one"]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_format_that_there_is_not_ends_the_command_before_it_runs(tmp_path):
    done = himach("run", "rmsd", *DATA, "--figure", "svg,gif", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "himach: error: figure gif: plots are svg, pdf, png\n")
    assert not (tmp_path / "out").exists()
