"""What all of them share: a frame store of each test's own, the sample trajectories, the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from himach.examples import sample

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Files = tuple[str, str]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test finds what another one, or the user, has cached."""
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


@pytest.fixture
def villin() -> Files:
    """Trajectory and topology of a small protein."""
    trajectory, topology = sample("villin")
    return str(trajectory), str(topology)


@pytest.fixture
def nanopore() -> Files:
    """Trajectory and topology of ions and water."""
    trajectory, topology = sample("nanopore")
    return str(trajectory), str(topology)


@pytest.fixture
def himach_command(tmp_path: Path) -> Command:
    """Return a function that runs ``himach WORDS...``; it fails unless the command ends with `code`."""

    def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        completed = subprocess.run(
            [sys.executable, "-P", "-m", "himach", *(str(word) for word in words)],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert completed.returncode == code, f"{completed.args}\n{completed.stdout}{completed.stderr}"
        return completed

    return run
