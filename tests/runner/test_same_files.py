"""Every built-in analysis leaves the same bytes on one rank and on three, from the cache and from the origin."""

from __future__ import annotations

import json

import pytest
from runner.passes import PASSES
from support.commands import himach, same_files

from himach.examples import BUILTINS

#: Each built-in takes part in one of these.
EACH_TIME = ["nanopore", "channel, bulk to bulk", "shape of a protein", "bridges of water"]
EACH_TIME += ["water", "argon", "membrane", "adk"]


def test_every_built_in_takes_part():
    assert {word for name in EACH_TIME for word in PASSES[name]} >= set(BUILTINS)


@pytest.mark.slow
@pytest.mark.nightly(but=EACH_TIME)
@pytest.mark.parametrize("name", PASSES)
def test_built_ins_leave_the_same_bytes_on_one_rank_and_on_three(name, tmp_path):
    # Three ranks read the origin and keep what they read; one reads what was kept.
    for ranks in (3, 1):
        out = tmp_path / str(ranks)
        done = himach("run", *PASSES[name], "-n", ranks, "--out", out, "--quiet")
        assert done.returncode == 0, done.stderr
        record = json.loads((out / "run.json").read_text())
        assert record["ranks"] == ranks
        assert (record["assignment"]["residue"] == 0) == (ranks == 1), record["assignment"]
    same_files(tmp_path / "1", tmp_path / "3")
