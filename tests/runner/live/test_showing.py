"""Live runs in a notebook, whose cell redraws itself, and under mpiexec."""

import sys

import nbformat
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from nbclient import NotebookClient
from support.commands import DATA
from support.ranks import mpiexec

pytestmark = pytest.mark.slow

CELL = """
import himach

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
RUN = f"last = himach.follow(Seen(), {str(DCD)!r}, {str(PSF)!r}, every=20, idle=0.5, progress=False)"


def test_a_cell_redraws_itself(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (CELL, RUN)])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    (shown,) = (item for item in notebook.cells[1].outputs if item.output_type == "display_data")
    assert "98" in shown["data"]["text/html"]
    assert "data:image/png" in shown["data"]["text/html"]
    assert "by updates" in shown["data"]["text/html"]


def test_no_frame_is_one_error_of_all_ranks(tmp_path):
    command = [sys.executable, "-P", "-m", "himach", "follow", "rmsd", "-t", "nothing", *DATA[2:], "--idle", "1"]
    done = mpiexec(2, command, timeout=90)
    assert done.returncode == 1
    assert done.stderr.count("there is no frame to analyse") == 1
