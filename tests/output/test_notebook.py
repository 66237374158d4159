"""A result, its figure and the progress bar in a notebook."""

from html.parser import HTMLParser

import nbformat
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from nbclient import NotebookClient

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
    cells = [RUN.format(dcd=str(DCD), psf=str(PSF)), "result.report('report.html')", "result.plot()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    (result,) = [output["data"] for output in notebook.cells[0].outputs if output.output_type == "execute_result"]
    assert result["text/plain"].startswith("Result(")
    shown = result["text/html"]
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
    assert "58/58" in str(notebook.cells[0].outputs)
    assert "image/png" in notebook.cells[2].outputs[0]["data"]
    assert "report.html" in str(notebook.cells[1].outputs)
    assert "<img" in (tmp_path / "report.html").read_text()
