"""Each of these tests has a node's folder for files elsewhere of its own, and little patience."""

import pytest
from support import needs

from himach.benchmarks.parts.urls import served
from himach.io.trajectories import file_failures
from himach.io.trajectories.urls import byte_file, mirror, transport


@pytest.fixture(autouse=True)
def _node(tmp_path, monkeypatch):
    needs.module("fsspec")
    needs.module("aiohttp")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    for module in (file_failures, transport):
        monkeypatch.setattr(module, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(byte_file, "LOOK_SECONDS", 60.0)  # tests say when a server is asked anew
    mirror.keep_in(None)
    byte_file._remote_files.clear()


@pytest.fixture
def web(tmp_path):
    """Serve a folder by HTTP."""
    folder = tmp_path / "web"
    folder.mkdir()
    with served(folder) as found:
        yield found
