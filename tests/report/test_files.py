"""`Result.report`: the page of a result, as `himach report` makes it of the folder that the run left."""

from __future__ import annotations

import re

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import himach
from support.sample_runs import Drawn, make_record

from himach import HimachError, Member, run
from himach.result import Result

#: What differs between two runs of the same: wall time.
SECONDS = re.compile(r"\d[\d.e-]* (s|ms|min|frames/s)\b")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run("rmsd", DCD, PSF, stop=50, cache="off", out=tmp_path_factory.mktemp("runs") / "first", progress=False)


def test_a_result_is_reported_as_its_folder_is(result, tmp_path):
    assert result.report(tmp_path / "of result.html")[0] == tmp_path / "of result.html"
    done = himach("report", result.out, "--out", tmp_path / "of folder.html")
    assert done.returncode == 0, done.stderr
    one, other = [(tmp_path / f"of {what}.html").read_text() for what in ("result", "folder")]
    assert SECONDS.sub("", one) == SECONDS.sub("", other)
    assert "first" in re.search("<title>(.*)</title>", one)[1]
    assert "data:image" in one


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


def test_an_ensemble_is_reported(tmp_path):
    members = [Member("a", DCD, PSF, stop=10), Member("b", DCD, PSF, start=10, stop=20)]
    run("rmsd", ensemble=members, cache="off", progress=False).report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "member" in page
    assert "t over members</td>" in page  # of one group there are no differences


def test_where_it_cannot_be_written_is_told(result, tmp_path):
    with pytest.raises(HimachError, match=r"no/page\.html cannot be written"):
        result.report(tmp_path / "no" / "page.html")


@pytest.mark.parametrize("name", ["run.json", "rmsd.csv"])
@pytest.mark.parametrize("command", ["report", "bundle"])
def test_what_it_is_made_of_is_not_replaced(result, command, name):
    before = (result.out / name).read_bytes()
    done = himach(command, result.out, "--out", result.out / name)
    assert done.returncode == 2
    assert f"{name} is a file that this is made of; name another one by --out" in done.stderr
    assert (result.out / name).read_bytes() == before


def test_a_page_is_none_of_the_files_beside_it(result, tmp_path):
    with pytest.raises(HimachError, match=r"methods\.md has the name of a file that lies beside the page"):
        result.report(tmp_path / "methods.md")
    assert list(tmp_path.iterdir()) == []


def test_other_ranks_write_nothing(tmp_path):
    assert Result([Drawn()], None, make_record(Drawn())).report(tmp_path / "page.html") == []
    assert list(tmp_path.iterdir()) == []
