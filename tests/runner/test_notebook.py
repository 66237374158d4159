"""A real notebook: analyses defined in its cells, on two ranks, with progress and results that show themselves."""

from __future__ import annotations

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
WRONG = """
class Wrong(himach.Analysis):
    def map(self, frame):
        yield 1, 1 / (frame.number - 50)   # fails there
    def reduce(self, key, series):
        return len(series)
try:
    himach.run(Wrong(), DCD, PSF, ranks=2)
except himach.AnalysisError as error:
    print(error)
"""


def test_analyses_in_cells_run_on_two_ranks(tmp_path):
    cells = [
        CELL,
        f"DCD, PSF = {str(DCD)!r}, {str(PSF)!r}",
        "himach.run(Ends(), DCD, PSF)",
        "two = himach.run(Ends(), DCD, PSF, ranks=2); two",
        "print(two.outcome == himach.run(Ends(), DCD, PSF).outcome, two.record['ranks'])",
        WRONG,
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    alone, two, equal, wrong = (cell.outputs for cell in notebook.cells[2:])
    for outputs in (alone, two):
        shown = [output["data"] for output in outputs if output.output_type == "execute_result"]
        assert len(shown) == 1
        assert "largest" in shown[0]["text/html"]
        assert "image/png" in shown[0] or "data:image/png" in shown[0]["text/html"]
    assert "True 2" in "".join(output.get("text", "") for output in equal)
    text = "".join(output.get("text", "") for output in wrong if output.get("name") == "stdout")
    assert "Wrong.map()" in text
    assert "frame 50" in text
    assert "fails there" in text  # the line of the cell, though another process ran it
