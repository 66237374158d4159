"""The page of a report: complete, alone, small, the same each time, and safe whatever a folder holds."""

import itertools
import json
import os
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from MDAnalysisTests.datafiles import CRD, DCD, PSF
from runner.passes import EACH_TIME, PASSES
from support.commands import himach as command

import himach
from himach.errors import UsageError
from himach.examples import load
from himach.report.folder import LARGEST, SCHEMA, read_folder
from himach.report.page import MOST_BYTES, report_page
from himach.report.result_lines import ReportRow, _group_means

#: Elements without an end tag.
VOID = {"meta", "img", "br", "hr", "link", "col", "input"}
#: Attributes by which a browser loads something.
LOADS = {"src", "srcset", "data", "poster", "action", "formaction", "background", "xlink:href", "manifest"}


class Page(HTMLParser):
    """A page taken apart: its elements with attributes, words, ids, and whether tags are balanced."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Return the folder of a run of two analyses."""
    out = tmp_path_factory.mktemp("small") / "out"
    himach.run([load("rmsd")(), load("rmsf")(by="residue")], DCD, PSF, stop=40, out=out, progress=False)
    return out


@pytest.fixture
def changed(small, tmp_path):
    """Give what copies that folder and changes its record."""

    def change(**fields) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(small, folder)
        record = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**record, **fields}))
        return folder

    return change


def page_of(*folders: Path) -> str:
    return report_page([read_folder(folder) for folder in folders])


def words_of(*folders: Path) -> str:
    return " ".join(Page(page_of(*folders)).words)


def check_alone(page: Page) -> None:
    """Check that nothing but the page itself is needed, and that nothing in it runs."""
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form", "video", "audio", "input"}
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in LOADS & attributes.keys():
            assert attributes[name].startswith("data:image/")
    assert all(link.startswith(("#", "https://doi.org/", "https://")) for link in page.attributes("href"))
    assert not re.search(r"url\(|@import", "".join(page.words))
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.attributes("href") if link.startswith("#")} <= set(ids)
    assert set(page.attributes("aria-labelledby")) <= set(ids)
    assert page.open == []


def check_readable(page: Page) -> None:
    """Check what screen readers and keyboards need."""
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert [attributes["lang"] for tag, attributes in page.elements if tag == "html"] == ["en"]
    assert {"main", "nav", "header", "title"} <= {tag for tag, _ in page.elements}
    pictures = [attributes for tag, attributes in page.elements if tag == "img"]
    assert all(attributes.get("alt") for attributes in pictures)
    assert all(attributes.get("aria-label") for tag, attributes in page.elements if tag == "svg")
    assert all(attributes.get("scope") for tag, attributes in page.elements if tag == "th")
    regions = [attributes for _, attributes in page.elements if attributes.get("role") == "region"]
    assert all(attributes.get("tabindex") == "0" and attributes.get("aria-label") for attributes in regions)


def test_a_page_stands_alone_and_can_be_read(small):
    page = Page(page_of(small))
    check_alone(page)
    check_readable(page)
    policy = {"http-equiv": "Content-Security-Policy"}
    policy["content"] = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert [attributes for _, attributes in page.elements if "http-equiv" in attributes] == [policy]


def test_the_page_says_what_came_of_it_and_where_it_comes_from(small):
    words = words_of(small)
    record = json.loads((small / "run.json").read_text())
    mean = record["uncertainty"]["rmsd/rmsd"]["means"]["rmsd"]["mean"]
    for text in (
        f"mean of RMSD / Å: {mean:.6g}, not converged", "fewer than 8 independent values", "RMSF: largest", "3341",
        "40 of the 98 frames", "214 protein", record["dataset"]["fingerprint"], record["himach"],
        record["analyses"][0]["caption"].partition(".")[0], "The run had no errors and no warnings",
    ):  # fmt: skip
        assert text in words


def test_the_same_folders_give_the_same_bytes_wherever_and_whenever(small, tmp_path, monkeypatch):
    before = page_of(small)
    copy = tmp_path / "elsewhere" / small.name
    shutil.copytree(small, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert page_of(copy) == before


def fields_in(schema):
    """Return the names of all fields in a schema."""
    inside = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    own = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return {*own}.union(*map(fields_in, inside))


#: Keys of a record that have a meaning.
KEPT = {"total", "whole", "damaged", "missing"} | fields_in(json.loads(SCHEMA.read_bytes()))
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'--></style>{{ 7 * 7 }}`<b>`[10.1234/<i>]\x00\u202e"


def evil(value):
    """Return a value with a hostile text in the place of each of its texts and keys."""
    if isinstance(value, dict):
        return {EVIL if key not in KEPT else key: evil(each) for key, each in value.items()}
    if isinstance(value, list):
        return [evil(each) for each in value]
    return EVIL if isinstance(value, str) else value


@pytest.mark.parametrize("ensemble", [False, True])
def test_hostile_text_is_shown_and_nothing_more(changed, small, ensemble):
    record = json.loads((small / "run.json").read_text())
    hostile = {**evil(record), "files": record["files"], "errors": [EVIL], "warnings": [EVIL]}
    hostile |= {"fit": EVIL, "center": EVIL}
    if ensemble:
        member = {"name": EVIL, "trajectory": [EVIL], "topology": None, "frames": 3, "fingerprint": None}
        member |= {"group": EVIL, "error": EVIL, "system": hostile["system"]}
        hostile["ensemble"] = [member, {**member, "error": None}]
    folder = changed(**hostile)
    (folder / "rmsd" / "rmsd.csv").write_text(f'time_ps,"{EVIL[:20]}"\n1,"{EVIL[:20]}"\n')
    text = page_of(folder)
    page = Page(text)
    check_alone(page)
    check_readable(page)
    words = " ".join(page.words)
    assert "alert(1)" in words and "{{ 7 * 7 }}" in words
    assert not {"\x00", "\u202e"} & set(text)
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in Page(page_of(small)).elements}


def test_a_damaged_table_is_told(changed):
    folder = changed()
    (folder / "rmsd" / "rmsd.csv").write_text("a,b\n1\n")
    words = words_of(folder)
    assert "changed/rmsd/rmsd.csv is no table: row 2 has not as many cells" in words
    assert str(folder.parent) not in words


def test_a_table_larger_than_memory_may_be_is_told_and_not_read(changed):
    folder = changed()
    with (folder / "rmsd" / "rmsd.csv").open("r+b") as file:
        file.truncate(LARGEST + 1)
    assert f"rmsd.csv is not looked at: it has {LARGEST + 1:,} bytes" in words_of(folder)


def test_missing_files_and_faulty_frames_are_told(changed):
    folder = changed(faulty={"damaged": 2, "missing": 5}, warnings=["the file <t> is cut off"])
    (folder / "rmsf" / "rmsf.png").unlink()
    words = words_of(folder)
    assert "Missing frames: 5. Damaged copies in the cache: 2, read from the trajectory instead." in words
    assert "gone: rmsf/rmsf.png" in words
    assert "the file <t> is cut off" in words


def test_what_does_not_fit_is_told(changed):
    folder = changed()
    (folder / "rmsd" / "rmsd.png").write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(MOST_BYTES))
    text = page_of(folder)
    assert len(text.encode()) < MOST_BYTES
    words = " ".join(Page(text).words)
    assert "This figure (2.0 MB) does not fit into the page; it lies in the folder." in words
    assert len(Page(text).attributes("src")) == 1  # the other one fits


@pytest.mark.nightly
def test_a_huge_table_is_summed_up(changed):
    folder = changed()
    lines = [f"{row * 0.5},{row % 7}" for row in np.arange(50_000)]
    (folder / "rmsd" / "rmsd.csv").write_text("\n".join(["time_ps,rmsd", *lines]) + "\n")
    text = page_of(folder)
    assert len(text.encode()) < 400_000
    words = " ".join(Page(text).words)
    assert "49988 rows more" in words
    assert "0.0 to 24999.5" in words


def test_folders_of_one_name_are_told_apart_and_one_is_not_given_twice(small, tmp_path):
    for group in ("a", "b"):
        shutil.copytree(small, tmp_path / group / "out")
    headings = words_of(tmp_path / "a" / "out", tmp_path / "b" / "out")
    assert "a/out" in headings and "b/out" in headings
    with pytest.raises(UsageError, match="given twice"):
        page_of(small, small)


def test_an_ensemble_tells_of_members_groups_and_those_that_failed(tmp_path):
    members = [
        himach.Member(name, DCD, PSF, start=i * 20, stop=i * 20 + 20, group="AB"[i % 2])
        for i, name in enumerate("wxyz")
    ]
    members.append(himach.Member("lost", tmp_path / "no.dcd", PSF, group="B"))
    analyses, out = [load("rmsd")(), load("rmsf")(by="residue")], tmp_path / "out"
    table = himach.run(analyses, ensemble=members, out=out, progress=False).outcome["rmsd"]["rmsd"]
    page = Page(report_page([read_folder(out)], title="Four <parts>"))
    check_alone(page)
    check_readable(page)
    words = " ".join(page.words)
    for text in (
        "RMSD, A: mean", "RMSD, B - A: mean", "5 members of the ensemble", "member lost failed", "rmsd/rmsd, w",
        "fewer than 3 members in A: 2, B: 2", "over members; differences by Welch's, corrected by Holm",
    ):  # fmt: skip
        assert text in words
    assert words.count("Four <parts>") == 2  # of the window, and at the top
    means = [np.mean(np.asarray(table["rmsd"])[np.asarray(table["member"]) == member]) for member in "wy"]
    assert f"A 2 {min(means):.4g} Å {np.median(means):.4g} Å {max(means):.4g} Å" in words


@pytest.mark.parametrize("means", [(1.0, np.nextafter(1.0, 2.0)), (1e17, 1e17), (0.0, 0.0), (-2.0, 3.0)])
def test_means_of_members_however_near_have_a_histogram(means):
    rows = [
        ReportRow("rmsd", "sound", checks=SimpleNamespace(estimate=SimpleNamespace(value=mean)), member=name)
        for name, mean in zip("wx", means, strict=True)
    ]
    (group,) = _group_means(SimpleNamespace(members=[{"name": name, "group": None} for name in "wx"]), rows)
    assert max(group["histogram"][1]) in (1, 2)
    assert np.all(np.diff(group["histogram"][0]) >= 0)


def test_how_a_run_is_repeated_is_said_where_it_can_be(small, tmp_path):
    class Lone(himach.Analysis):
        """Where an atom is."""

        def map(self, frame):
            yield himach.Row(x=float(frame.positions[0, 0]))

    assert "The run is repeated by" in words_of(small)
    fit = himach.transformations.Fit("name CA", reference=CRD)
    himach.run(Lone(), DCD, PSF, out=tmp_path / "out", progress=False, stop=5, transform=[fit])
    words = words_of(tmp_path / "out")
    assert "The run cannot be repeated from its record, because of Lone (" in words
    assert "The run is repeated by" not in words
    assert f"reference = {CRD}" in words


def test_analyses_of_users_are_reported_by_what_their_tables_say(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import himach\n\nclass Mine(himach.Analysis):\n    '''Where an atom is.'''\n\n    def map(self, frame):\n"
        "        yield himach.Row(x=float(frame.positions[0, 0]), flag='<i>')\n"
    )
    himach.run(f"{script}:Mine", DCD, PSF, out=tmp_path / "out", progress=False)
    page = Page(page_of(tmp_path / "out"))
    check_alone(page)
    words = " ".join(page.words)
    assert "98 rows of time_ps, x, flag, frame" in words
    assert "Mine: x" in words  # its mean is looked at, though it did not ask for one
    assert "<i>" in words


@pytest.mark.nightly
@pytest.mark.slow
def test_every_builtin_in_one_report(tmp_path):
    """Complete, below 2 MB, in 3 s beyond the runs, twice the same."""
    for name in EACH_TIME:
        command("run", *PASSES[name], "--out", tmp_path / name, "--quiet", code=0)
    folders = [tmp_path / name for name in EACH_TIME]
    begun = time.process_time()
    text = page_of(*folders)
    assert time.process_time() - begun < 3
    assert text == page_of(*folders)
    assert len(text.encode()) < MOST_BYTES
    page = Page(text)
    check_alone(page)
    check_readable(page)
    words = " ".join(page.words)
    figures = [tag for tag, _ in page.elements if tag == "img"]
    assert len(figures) == sum(len(read_folder(folder).analyses) for folder in folders)  # each has one
    assert "does not fit" not in words
    for folder in map(read_folder, folders):
        for analysis in folder.analyses:
            for name in analysis.tables:
                assert folder.tables[name] in words
            assert analysis.entry["methods"].partition(" ")[0] in words
            assert analysis.entry["caption"].partition(" {")[0][:20] in words
    assert "g(r): first peak" in words
