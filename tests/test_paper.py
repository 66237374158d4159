"""The paper for JOSS: its sections, its length, its head; and no figure that docs/benchmarks.md does not have."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest
from support import needs

ROOT = Path(__file__).parents[1]
_, HEAD, BODY = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8").split("---\n", 2)
BIBLIOGRAPHY = (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8")
#: The page, and the table that is included in it.
BENCHMARKS = "".join(
    (ROOT / page).read_text(encoding="utf-8") for page in ("docs/benchmarks.md", "benchmarks/results/peers.md")
)
#: What JOSS requires, in its order.
SECTIONS = [
    "Summary",
    "Statement of need",
    "State of the field",
    "Software design",
    "Research impact statement",
    "AI usage disclosure",
    "Acknowledgements",
    "References",
]


def section(title: str) -> str:
    return re.split(r"^# ", BODY.partition(f"# {title}\n")[2], flags=re.MULTILINE)[0]


def test_the_paper_has_josss_sections_and_length():
    assert re.findall(r"^# (.+)$", BODY, re.MULTILINE) == SECTIONS
    assert [title for title in SECTIONS[:-1] if len(section(title).split()) < 20] == []
    assert 750 <= len(BODY.split()) <= 1750


def test_the_head_is_in_josss_form():
    head = needs.module("yaml").safe_load(HEAD)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [author["name"] for author in head["authors"]] == [author["name"] for author in project["authors"]]
    assert {author["affiliation"] for author in head["authors"]} <= {place["index"] for place in head["affiliations"]}
    assert "`" not in head["title"]
    assert datetime.datetime.strptime(head["date"], "%d %B %Y")
    assert (ROOT / "paper" / head["bibliography"]).is_file()


def test_what_is_cited_is_listed_and_the_other_way_round():
    entries = dict(re.findall(r"^@\w+\{([\w:-]+),\n(.*?)^\}$", BIBLIOGRAPHY, re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"@([\w:-]+)", BODY)) == entries.keys()
    for name, entry in entries.items():
        assert re.search(r"^  doi = \{10\.\d{4,}/[^\s{}]+\},$|^  url = \{https://", entry, re.MULTILINE), name
        assert re.search(r"^  (journal|booktitle) = \{", entry, re.MULTILINE), name


@pytest.mark.parametrize(
    ("figure", "unit"), re.findall(r"(\d+\.\d+)(?=(?: to [\d.]+)?( s\b| times| %))", section(SECTIONS[4]))
)
def test_figures_are_those_of_the_benchmarks(figure, unit):
    told = f"{float(figure) / 100:.3f}" if unit == " %" else figure  # shares are of one there
    assert re.search(rf"(?<![\d.]){re.escape(told)}(?!\d)", BENCHMARKS)
