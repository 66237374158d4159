"""A result, its figure and the progress bar in a notebook."""

from html.parser import HTMLParser

import nbformat
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
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


RUN = """
import himach
result = himach.run("rmsd", {dcd!r}, {psf!r}, start=40, cache="off", ranks=2)
result
"""


class Read(HTMLParser):
    """What a screen reader comes by: (tag, attributes, text) in order."""

    def __init__(self, page):
        super().__init__()
        self.met = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.met.append((tag, dict(attrs), ""))

    def handle_data(self, data):
        if self.met:
            tag, attrs, text = self.met[-1]
            self.met[-1] = (tag, attrs, text + data)

    def of(self, tag):
        return [(attrs, text) for name, attrs, text in self.met if name == tag]


@pytest.mark.slow
def test_a_notebook_shows_table_figure_and_trust_of_a_run_and_makes_its_report(tmp_path):
    cells = [RUN.format(dcd=str(DCD), psf=str(PSF)), "result.report('report.html')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    (shown,) = [one["data"]["text/html"] for one in notebook.cells[0].outputs if one.output_type == "execute_result"]
    read = Read(shown)
    assert [tag for tag, _, _ in read.met if tag in ("table", "figure", "p")] == ["table", "figure", "p"]
    assert [attrs["scope"] for attrs, _ in read.of("th")] == ["col", "col"]
    assert read.of("b")[0][1] == "rmsd: 58 rows"
    ((image, _),) = read.of("img")
    assert image["alt"] == "Plot of rmsd"
    ((_, caption),) = read.of("figcaption")
    assert "deviation" in caption
    ((_, trust),) = read.of("p")
    assert trust.startswith("mean of rmsd / Å: ")
    assert "N_eff" in trust
    assert "58 frames on 2 ranks" in shown
    assert "report.html" in str(notebook.cells[1].outputs)
    assert "<img" in (tmp_path / "report.html").read_text()
