"""Links lead somewhere: those of pages as files, and those of built pages by `.ci/links`, which is tried here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "docs/analyses", "release", "examples", "benchmarks", "native")
PAGES = sorted(page.relative_to(ROOT) for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
MADE = ("gallery_pages/", "plan-example/")  # by the build of the documentation
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*slugs, *(f"{slug}-{slugs[:i].count(slug)}" for i, slug in enumerate(slugs) if slug in slugs[:i])}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_files_lead_to_files_and_headings(page):
    text = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "", text)
    faults = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link) or link.startswith(MADE):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            faults.append(link)
    assert not faults


def check(folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, ROOT / ".ci" / "links", folder], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr.splitlines()


def test_built_pages_whose_links_lead_somewhere_pass(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a page.css").touch()
    (tmp_path / "one.html").write_text(
        '<link href="a%20page.css"><h1 id="top-of-it">One</h1><a href="#">up</a><a href="#top-of-it">here</a>'
        '<a href="sub/two.html#b">two</a><a href="https://example.org/">elsewhere, by a click</a>'
    )
    (tmp_path / "sub" / "two.html").write_text('<a name="b"></a><a href="../one.html">one</a><img src="data:,">')
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('<a href="two.html">', "one.html: there is no two.html"),
        ('<a href="#b">', "one.html: there is no anchor #b"),
        ('<a href="one.html#b">', "one.html: there is no anchor one.html#b"),
        ('<img src="picture.png">', "one.html: there is no picture.png"),
        ('<script src="https://example.org/x.js">', "one.html: <script> is fetched from https://example.org/x.js"),
        ('<link href="//example.org/x.css">', "one.html: <link> is fetched from //example.org/x.css"),
        ('<img src="http://example.org/x.png">', "one.html: <img> is fetched from http://example.org/x.png"),
    ],
)
def test_a_link_that_leads_nowhere_or_elsewhere_is_named(tmp_path, line, fault):
    (tmp_path / "one.html").write_text(f'<p id="a"></p>{line}')
    assert check(tmp_path) == [fault]


def test_no_pages_is_a_fault(tmp_path):
    assert check(tmp_path) == [f"{tmp_path}: there are no pages"]
