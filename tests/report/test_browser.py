"""A report in a real browser whose network is off: it asks for nothing, and shows all on screens and on paper."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support import needs

import himach
from himach.examples import load
from himach.report.files import write_report

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: In the browser's own log, what a page from a file asks for; what the browser asks for by itself is of no site.
ASKED = re.compile(r'"network_isolation_key":"file://[^"]*".{0,300}?"url":"((?!file:|data:)[^"]+)"')


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    himach.run([load("rmsd")(), load("rmsf")(by="residue")], DCD, PSF, out=folder / "run", progress=False)
    return write_report([folder / "run"], folder / "report.html")[0]


@pytest.fixture
def browse(tmp_path):
    """Give what shows a page in a browser without a network, and returns what the page asked a network for."""
    program = needs.program("chromium", of="a browser", required="HIMACH_REQUIRE_LATEX")

    def show(page: Path, *options: str) -> list[str]:
        log, profile = tmp_path / "net.json", tmp_path / "profile"
        # In a network of its own, which has nothing, where that is allowed; nowhere a name is resolved.
        alone = ["unshare", "-n"] if os.geteuid() == 0 and shutil.which("unshare") else []
        words = [*alone, program, *OPTIONS, f"--user-data-dir={profile}", f"--log-net-log={log}", *options]
        subprocess.run(
            [*words, "--host-resolver-rules=MAP * ~NOTFOUND", page.as_uri()],
            env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, timeout=120, check=True,
        )  # fmt: skip
        return ASKED.findall(log.read_text(encoding="utf-8"))

    return show


def picture(path: Path) -> np.ndarray:
    """Return the pixels of a screenshot, (height, width, 3), uint8."""
    return np.asarray(needs.module("PIL.Image").open(path).convert("RGB"))


@pytest.mark.nightly(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 500])
def test_a_screen_shows_it_without_a_network(browse, page, tmp_path, width):
    shot = tmp_path / "shot.png"
    assert browse(page, f"--window-size={width},2400", f"--screenshot={shot}") == []
    pixels = picture(shot)
    assert pixels.shape[1] == width
    assert (pixels[:, :4] == 255).all()  # margins are white,
    assert (pixels[:, -4:] == 255).all()  # and nothing runs over them
    assert (pixels < 100).any(axis=2).mean() > 0.01  # text


@pytest.mark.slow
def test_it_can_be_printed(browse, page, tmp_path):
    paper = tmp_path / "page.pdf"
    assert browse(page, "--no-pdf-header-footer", f"--print-to-pdf={paper}") == []
    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    assert 3 <= pages <= 15
