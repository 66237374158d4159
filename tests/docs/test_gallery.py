"""The gallery: a page for every built-in and each analysis that is ported; a page that fails makes the build fail."""

import re
from pathlib import Path

import pytest

from himach.examples import BUILTINS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_built_in_has_a_page():
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "gallery" / "builtins").glob("plot_*.py")]
    assert {name for page in pages for name in re.findall(r'load\("([\w-]+)"\)', page)} == set(BUILTINS)


@pytest.mark.parametrize("page", sorted((DOCS / "gallery").glob("*/plot_*.py")), ids=lambda page: page.stem)
def test_every_page_has_a_picture(page):
    """The build takes what pyplot knows: a figure that result.plot() made by itself would be missing."""
    text = page.read_text(encoding="utf-8")
    assert "plt.subplots(" in text
    assert "plot()" not in re.sub(r"``[^`]*``", "", text)


def test_the_analyses_ported_in_the_pages_are_there():
    told = (DOCS / "mdanalysis.md").read_text(encoding="utf-8").partition("## Side by side")[2]
    ported = re.findall(r"^### (\w+)$", told, re.MULTILINE)
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "gallery" / "ported").glob("plot_*_ported.py")]
    assert len(ported) >= 4
    assert sorted(page.splitlines()[1].partition(",")[0] for page in pages) == sorted(ported)
