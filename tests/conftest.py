"""Every test has a frame store of its own, so that no test finds what another one, or the user, has cached."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path_factory.mktemp("cache") / "store-{node}"))
