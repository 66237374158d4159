"""Each of these tests has a node's folder for files elsewhere of its own, and little patience."""

from __future__ import annotations

import pytest
from support import needs

from himach.benchmarks.parts.urls import served
from himach.io.remote import byte_file, patience, place


@pytest.fixture(autouse=True)
def _node(tmp_path, monkeypatch):
    needs.module("fsspec")
    needs.module("aiohttp")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    monkeypatch.setattr(patience, "PAUSES", (0.01, 0.02, 0.05))
    monkeypatch.setattr(byte_file, "FAILED_SECONDS", 0.0)
    monkeypatch.setattr(place, "PRUNE_SECONDS", 0.0)
    byte_file._known.clear()


@pytest.fixture
def web(tmp_path):
    """Serve a folder by HTTP."""
    folder = tmp_path / "web"
    folder.mkdir()
    with served(folder) as found:
        yield found
