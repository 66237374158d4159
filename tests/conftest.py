"""What all tests share: a frame store of each test's own, and where larger trajectories lie, if there are any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("HIMACH_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory, monkeypatch):
    """No test finds what another one, or the user, has cached."""
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path_factory.mktemp("cache") / "store-{node}"))


@pytest.fixture
def shared():
    """Return trajectory and topology by the name of a folder of the shared data, or skip the test."""
    files = {
        "kcsa2pot": ("fix_c_10ns-pro-2POT.xtc", "02-pro-2POT.pdb"),
        "nanopore": ("nanopore.xtc", "nanopore.pdb"),
        "villin": ("villin.xtc", "villin.pdb"),
    }

    def find(name):
        trajectory, topology = (SHARED / name / file for file in files[name])
        if not trajectory.exists():
            pytest.skip(f"no {name} in the shared data; HIMACH_TEST_DATA names their folder")
        return trajectory, topology

    return find
