"""The gallery: a page for every built-in and each analysis that is ported; a page that fails makes the build fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import needs
from support.ranks import clean_environment

from himach.examples import BUILTINS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = '"""\nOne\n===\n\nA page.\n"""\n\nimport matplotlib.pyplot as plt\n\nplt.plot([1, 2])\n{line}\n'


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


def build(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Build pages with our settings, and a gallery of one page that ends with a line."""
    (folder / "gallery").mkdir(parents=True)
    shutil.copy(DOCS / "conf.py", folder)
    shutil.copytree(DOCS / "_static", folder / "_static")
    (folder / "index.md").write_text("# Pages\n\n```{toctree}\ngallery_pages/index\n```\n")
    (folder / "gallery" / "GALLERY_HEADER.rst").write_text("Gallery\n=======\n")
    (folder / "gallery" / "plot_one.py").write_text(PAGE.format(line=line))
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(folder),
        str(folder / "html"),
    ]
    return subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False, timeout=250
    )


@pytest.mark.slow
def test_a_page_that_fails_makes_the_build_fail(tmp_path):
    needs.module("sphinx_gallery")
    good = build(tmp_path / "good", "print(6 * 7)")
    assert good.returncode == 0, good.stderr
    page = (tmp_path / "good" / "html" / "gallery_pages" / "plot_one.html").read_text(encoding="utf-8")
    assert "42" in page
    assert "plot_one_001.png" in page
    bad = build(tmp_path / "bad", "assert 6 * 7 == 41")
    assert bad.returncode != 0
    assert "plot_one.py" in bad.stderr
    assert "assert 6 * 7 == 41" in bad.stderr
