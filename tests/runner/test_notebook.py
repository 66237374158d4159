"""A real notebook: analyses defined in its cells, on two ranks, with progress and results that show themselves."""

import re

import nbformat
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

CELL = """
import numpy as np
import himach
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


def test_an_error_in_a_notebook_is_the_users_lines_and_its_text(tmp_path):
    start = f"import himach\nDCD, PSF = {str(DCD)!r}, {str(PSF)!r}"
    cells = [start, FAILING, "mine()", "mine(ranks=2)", "himach.run(Odd(), '/nowhere.xtc')", "mine(step=0)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where, allow_errors=True).execute()
    shown = []
    for cell in notebook.cells[2:]:
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
        CELL,
        f"DCD, PSF = {str(DCD)!r}, {str(PSF)!r}",
        "himach.run(Ends(), DCD, PSF)",
        "two = himach.run(Ends(), DCD, PSF, ranks=2); two",
        "print(two.outcome == himach.run(Ends(), DCD, PSF).outcome, two.record['ranks'])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    alone, two, equal = (cell.outputs for cell in notebook.cells[2:])
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
    cells = [f"import himach\nDCD, PSF = {str(DCD)!r}, {str(PSF)!r}", BARS]
    cells += [f"{call}{number})" for call in ("run(", "interrupted(") for number in ranks]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where, allow_errors=True).execute()
    for cell in notebook.cells[2:5]:
        text = "".join(output.get("text", "") for output in cell.outputs)
        assert "98/98" in text and text.count(" 0/98") <= 1, cell
    for cell in notebook.cells[5:]:
        assert [output.traceback for output in cell.outputs if output.output_type == "error"] == [
            ["KeyboardInterrupt: run() was interrupted"]
        ]
