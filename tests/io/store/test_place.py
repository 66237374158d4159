"""Where a node's store lies, and opening the one that the user chose."""

import os
from pathlib import Path

import pytest

from himach.io.store.quota import open_store, store_place
from himach.io.store.store import StoreRefusedError

OWN = f"himach-{os.geteuid()}"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("HIMACH_CACHE", "SLURM_TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HIMACH_NODE", "n17")


def test_default_place(monkeypatch):
    assert store_place() == store_place("auto") == Path("/var/tmp") / OWN
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/x/.cache")
    assert store_place() == Path("/home/x/.cache/himach")
    monkeypatch.setenv("SLURM_TMPDIR", "/scratch/job7")
    assert store_place() == Path("/scratch/job7") / OWN
    monkeypatch.setenv("HIMACH_CACHE", "/local/{node}/cache")
    assert store_place() == Path("/local/n17/cache")


def test_a_named_place(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    assert store_place("/disk/{node}/frames") == Path("/disk/n17/frames")
    assert store_place("~/frames") == Path("/home/x/frames")
    monkeypatch.setenv("HIMACH_CACHE", "~/cache-{node}")
    assert store_place() == Path("/home/x/cache-n17")
    assert store_place("/other") == Path("/other")


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / OWN).symlink_to(tmp_path / "real")
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    with pytest.raises(StoreRefusedError, match="symbolic link"):
        open_store()
    assert open_store(tmp_path / OWN).identity
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / OWN))
    assert open_store().identity
