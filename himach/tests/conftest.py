"""Fixtures of all tests: a frame store of each test's own, a sample; `himach_command()` runs himach."""

import subprocess
import sys
from pathlib import Path

import MDAnalysis as mda
import pytest

from himach.examples import sample

Files = tuple[str, str]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a folder to work in, with a store of its own."""
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def villin() -> Files:
    """Trajectory and topology of a small protein."""
    trajectory, topology = sample("villin")
    return str(trajectory), str(topology)


@pytest.fixture
def universe(villin: Files) -> mda.Universe:
    """Universe of that protein."""
    return mda.Universe(villin[1], villin[0])


def himach_command(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``himach WORDS...``, which must end with `code`."""
    command = [sys.executable, "-P", "-m", "himach", *map(str, words)]
    completed = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert completed.returncode == code, f"{completed.args}\n{completed.stdout}{completed.stderr}"
    return completed
