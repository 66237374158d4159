"""The gallery's pages of other packages' analyses, run where the package is; each compares with the package alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import needs
from support.ranks import clean_environment

PAGES = Path(__file__).parents[2] / "docs" / "gallery" / "others"


@pytest.mark.nightly
@pytest.mark.parametrize("page", sorted(PAGES.glob("plot_*.py")), ids=lambda page: page.stem)
def test_ranks_give_what_the_package_gives_alone(page, tmp_path):
    needs.module(page.stem.removeprefix("plot_"))
    environment = {**clean_environment(), "MPLBACKEND": "agg", "HIMACH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(page)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
