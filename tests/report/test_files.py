"""The files of a report: what they replace, and templates of the user's."""

import re
import shutil

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import himach
from support.sample_runs import Drawn, make_record

from himach import HimachError, UsageError, run, write_report
from himach.report.folder import read_folder
from himach.report.report_files import methods_files, write_methods
from himach.report.template import OWN
from himach.result import Result

#: What differs between two runs of the same: wall time.
SECONDS = re.compile(r"\d[\d.e-]* (s|ms|min|frames/s)\b")
NAMES = ["methods.md", "methods.tex", "references.bib", "checklist.md"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run("rmsd", DCD, PSF, stop=50, cache="off", out=tmp_path_factory.mktemp("runs") / "first", progress=False)


def test_a_result_is_reported_as_its_folder_is(result, tmp_path):
    assert result.report(tmp_path / "of result.html")[0] == tmp_path / "of result.html"
    himach("report", result.out, "-o", tmp_path / "of folder.html", code=0)
    of_result, of_folder = [(tmp_path / f"of {what}.html").read_text() for what in ("result", "folder")]
    assert SECONDS.sub("", of_result) == SECONDS.sub("", of_folder)
    assert "first" in re.search("<title>(.*)</title>", of_result)[1]
    assert "data:image" in of_result


def test_a_result_that_left_no_files_is_named_by_its_page(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    record = make_record(Drawn())
    seconds = dict(record["seconds"])
    outcome = {"x": [1, 2], "t": {"a": [1.5], "b": [2.5]}}
    Result([Drawn()], [outcome], record).report(str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "page" in re.search("<title>(.*)</title>", page)[1]
    assert "2.5" in page
    assert record["seconds"] == seconds
    assert "files" not in record
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("name", ["run.json", "rmsd.csv"])
@pytest.mark.parametrize("command", ["report", "bundle"])
def test_what_it_is_made_of_is_not_replaced(result, command, name):
    before = (result.out / name).read_bytes()
    done = himach(command, result.out, "--out", result.out / name, code=2)
    assert f"{name} is a file that this is made of" in done.stderr
    assert (result.out / name).read_bytes() == before


def test_a_page_is_none_of_the_files_beside_it(result, tmp_path):
    with pytest.raises(HimachError, match=r"methods\.md is a file .* that lies beside it"):
        result.report(tmp_path / "methods.md")
    assert list(tmp_path.iterdir()) == []


def test_other_ranks_write_nothing(tmp_path):
    assert Result([Drawn()], None, make_record(Drawn())).report(tmp_path / "page.html") == []
    assert list(tmp_path.iterdir()) == []


def test_files_beside_the_page_that_are_of_others_stay(result, tmp_path):
    (tmp_path / "references.bib").write_text("@book{mine}")
    done = himach("report", result.out, "--out", tmp_path / "report.html", code=0)
    assert (tmp_path / "references.bib").read_text() == "@book{mine}"
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", *NAMES}
    assert f"warning: {tmp_path} keeps references.bib: not of himach's making" in done.stderr
    checklist = tmp_path / "checklist.md"
    checklist.write_text(filled := checklist.read_text().replace("**To be filled in:** salt concentration", "0.15 M"))
    with pytest.warns(UserWarning, match=r"keeps references\.bib, checklist\.md: .* himach cite --out FOLDER"):
        written = write_report([result.out], tmp_path / "report.html")
    assert [path.name for path in written] == ["report.html", "methods.md", "methods.tex"]
    assert checklist.read_text() == filled
    files = methods_files([read_folder(result.out)])
    with pytest.raises(UsageError, match=r"references\.bib is there, and himach did not write it.*name another"):
        write_methods(tmp_path, files)


def test_a_template_of_the_users_takes_the_place_of_himachs(result, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "methods.md.j2").write_text("{{ runs[0].name }} <&> {{ references[0].key }}\n")
    (own / "style.css").write_text("b { color: #123456; }")
    prose = (OWN / "prose.j2").read_text()
    (own / "prose.j2").write_text(prose.replace("Trajectories were analysed with", "We read trajectories by"))
    himach("report", result.out, "-o", tmp_path / "page.html", "--template", own, code=0)
    assert (tmp_path / "methods.md").read_text() == "first <&> himach\n"
    assert "We read trajectories by himach" in (page := (tmp_path / "page.html").read_text())
    assert "#123456" in page
    shutil.copy(OWN / "report.html.j2", own)
    for text, message in (
        ("\n{{ no_such }}", r"report\.html\.j2, line \d+: 'no_such' is undefined; the templates of himach"),
        ("{% if %}", r"report\.html\.j2, line 1: Expected an expression"),
        ("{{ runs.__class__.__base__ }}", "unsafe"),
    ):
        (own / "report.html.j2").write_text(text)
        with pytest.raises(UsageError, match=message):
            write_report([result.out], tmp_path / "page.html", templates=own)
    with pytest.raises(UsageError, match=r"there is no folder .*none of templates"):
        write_report([result.out], tmp_path / "page.html", templates=tmp_path / "none")
