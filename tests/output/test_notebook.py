"""A result, its figure and the progress bar in a notebook."""

import nbformat
import pytest
from nbclient import NotebookClient

CELL = """
import sys
sys.path.insert(0, {tests!r})
from support.sample_runs import Drawn, make_record
from himach.parallel.communicator import Alone
from himach.parallel.progress import Progress
from himach.result import Result

with Progress(Alone(), 5, sys.stderr) as progress:
    progress(5)
result = Result([Drawn()], [{{"x": [1, 2], "t": {{"a": [1.5]}}}}], make_record(Drawn()))
result
"""


@pytest.mark.slow
def test_a_notebook_shows_a_result_and_a_figure(request):
    tests = str(request.path.parent.parent)
    cells = [nbformat.v4.new_code_cell(CELL.format(tests=tests)), nbformat.v4.new_code_cell("result.plot()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = {output.output_type: output for output in notebook.cells[0].outputs}
    assert "5/5" in str(notebook.cells[0].outputs)
    assert "<table>" in shown["execute_result"]["data"]["text/html"]
    assert shown["execute_result"]["data"]["text/plain"].startswith("Result(")
    assert "image/png" in notebook.cells[1].outputs[0]["data"]
