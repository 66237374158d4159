"""A run that keeps its pairs, killed at any touch of a file and begun again: the outcome is that of a run in one go."""

import os

import pytest
from pyroaring import BitMap64
from support.commands import killed_at_touch

from himach.checkpoint.directory import PairsDirectory
from himach.checkpoint.part import read_summary

from .damage import N_FRAMES, NAMES, Ground


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("kills"))


def covered(ground):
    """Return the frames that are kept of all analyses."""
    directory, frames = PairsDirectory(ground.pairs), BitMap64(range(N_FRAMES))
    for name in NAMES:
        parts = [path for item in directory.generations(name) if item.fingerprint for path in item.parts()]
        frames &= BitMap64.union(BitMap64(), *(read_summary(path).covered for path in parts))
    return frames


@pytest.mark.parametrize("before", [0, 3], ids=["from the first", "with pairs of an earlier run"])
def test_a_run_that_is_killed_at_any_moment_goes_on(made, monkeypatch, before):
    """At every seventh touch, and at all by night."""
    monkeypatch.setenv("HIMACH_KEEP_EVERY", "0")
    at, killed, kept = 0, True, set()
    while killed:
        at += 1 if os.environ.get("HIMACH_NIGHTLY") else 7
        made.clear()
        if before:
            made.run(pairs=made.pairs, stop=before)
        killed = killed_at_touch(made.pairs, at, lambda: made.run(pairs=made.pairs))
        there = len(covered(made)) if made.pairs.is_dir() else 0
        kept.add(there)
        result, warned = made.run(pairs=made.pairs)
        assert (result.text(), warned) == (made.text, []), at
        assert result.record["reused"]["frames"] == there, at
        assert not [path for path in made.pairs.rglob("*") if path.name.endswith((".tmp", ".lock"))], at
        made.check()
    assert at > 30
    assert {before, N_FRAMES} <= kept  # and what lies between, as the clock has it
