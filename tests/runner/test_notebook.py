"""A real notebook: analyses of its cells on two ranks, and live, with progress and results that show themselves."""

import re

import nbformat
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

FILES = f"import himach\nDCD, PSF = {str(DCD)!r}, {str(PSF)!r}"
CELL = """
import numpy as np
from collections import namedtuple

Pair = namedtuple("Pair", "a b")

class Ends(himach.Analysis):
    "Distance between the ends."
    def setup(self, universe):
        self.ends = universe.select_atoms("name CA")[[0, -1]]
    def map(self, frame):
        yield "distance", float(np.linalg.norm(np.subtract(*self.ends.positions)))
        yield "pair", Pair(frame.number, "x")
    def reduce(self, key, series):
        return series.values[-1].a if key == "pair" else max(series.values)
    def finish(self, results):
        return {"largest": {"distance": [results["distance"]], "last": [results["pair"]]}}
    def plot(self, outcome, axes):
        axes.bar(["largest"], outcome["largest"]["distance"])
"""
FAILING = """
class Odd(himach.Analysis):
    def map(self, frame):
        yield 1, halved(frame)
    def reduce(self, key, series):
        return len(series)

def halved(frame):
    return 1 / (frame.number - 50)

def mine(**options):
    return himach.run(Odd(), DCD, PSF, progress=False, **options)
"""


def execute(tmp_path, cells, **options):
    """Run these cells in a notebook; return them with their outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where, **options).execute()
    return notebook.cells


def test_an_error_in_a_notebook_is_the_users_lines_and_its_text(tmp_path):
    cells = [FILES, FAILING, "mine()", "mine(ranks=2)", "himach.run(Odd(), '/nowhere.xtc')", "mine(step=0)"]
    shown = []
    for cell in execute(tmp_path, cells, allow_errors=True)[2:]:
        (error,) = (output for output in cell.outputs if output.output_type == "error")
        shown.append(re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback)))
    for text in shown:
        assert len(text.splitlines()) < 30, text
        assert "site-packages" not in text and "ipykernel" not in text and "<string>" not in text, text
    alone, two, nowhere, wrong = shown
    assert "Cell In[3], line 1" in alone
    for text in (alone, two):  # whether this process or another ran the cell's code
        assert "Cell In[2], line 8, in halved: return 1 / (frame.number - 50)" in text
    assert "in Odd.map" in alone and "in mine" in alone
    assert "UsageError: there is no trajectory /nowhere.xtc" in nowhere
    assert "UsageError: step must not be 0" in wrong


def test_analyses_in_cells_run_on_two_ranks(tmp_path):
    cells = [
        FILES,
        CELL,
        "himach.run(Ends(), DCD, PSF)",
        "two = himach.run(Ends(), DCD, PSF, ranks=2); two",
        "print(two.outcome == himach.run(Ends(), DCD, PSF).outcome, two.record['ranks'])",
    ]
    alone, two, equal = (cell.outputs for cell in execute(tmp_path, cells)[2:])
    for outputs in (alone, two):
        shown = [output["data"] for output in outputs if output.output_type == "execute_result"]
        assert len(shown) == 1
        assert "largest" in shown[0]["text/html"]
        assert "image/png" in shown[0] or "data:image/png" in shown[0]["text/html"]
    assert "True 2" in "".join(output.get("text", "") for output in equal)


BARS = """
import os, signal, threading
os.mkfifo("stopped")
class Stops(himach.Analysis):
    at: int = -1
    def map(self, frame):
        if frame.number == self.at:
            open("stopped", "w").close()
            threading.Event().wait(60)
        yield "n", 1
    def reduce(self, key, series):
        return len(series)
def run(ranks, at=-1):
    himach.run(Stops(at=at), DCD, PSF, cache="off", ranks=ranks)
def interrupt():
    open("stopped").close()
    os.kill(os.getpid(), signal.SIGINT)
def interrupted(ranks):
    threading.Thread(target=interrupt).start()
    run(ranks, at=40)
"""


def test_a_notebook_shows_one_bar_whatever_the_ranks_and_an_interrupt_in_a_line(tmp_path):
    ranks = ["None", "2", "himach.Ranks(2)"]
    cells = [FILES, BARS]
    cells += [f"{call}{number})" for call in ("run(", "interrupted(") for number in ranks]
    executed = execute(tmp_path, cells, allow_errors=True)
    for cell in executed[2:5]:
        text = "".join(output.get("text", "") for output in cell.outputs)
        assert "98/98" in text and text.count(" 0/98") <= 1, cell
    for cell in executed[5:]:
        assert [output.traceback for output in cell.outputs if output.output_type == "error"] == [
            ["KeyboardInterrupt: run() was interrupted"]
        ]


SEEN = """
class Seen(himach.Analysis):
    "How many frames there were."
    def map(self, frame):
        yield "frames", frame.number
    def reduce(self, key, series):
        return len(series)
    def finish(self, results):
        return {"seen": {"frames": [results["frames"]]}}
    def plot(self, outcome, axes):
        axes.bar(["seen"], outcome["seen"]["frames"])
"""


def test_a_cell_of_a_live_run_redraws_itself(tmp_path):
    live = "last = himach.follow(Seen(), DCD, PSF, every=20, idle=0.5, progress=False)"
    followed = execute(tmp_path, [FILES, SEEN, live])[-1].outputs
    (shown,) = (item["data"]["text/html"] for item in followed if item.output_type == "display_data")
    for words in ("98", "data:image/png", "by updates"):
        assert words in shown
