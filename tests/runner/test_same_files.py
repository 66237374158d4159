"""Every built-in analysis leaves the same bytes for any number of ranks, with frames from the origin or the cache."""

from __future__ import annotations

import json

import pytest
from runner.passes import PASSES
from support.commands import himach, same_files

from himach.examples import BUILTINS


def test_every_built_in_takes_part():
    assert {word for words in PASSES.values() for word in words} >= set(BUILTINS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_built_ins_leave_the_same_bytes_on_any_number_of_ranks(name, tmp_path):
    for ranks in (1, 2, 3, 4):
        out = tmp_path / str(ranks)
        # One rank reads the origin; two keep what they read; three and four read what was kept.
        cache = ["--cache", "off"] if ranks == 1 else []
        done = himach("run", *PASSES[name], "-n", ranks, *cache, "--out", out, "--quiet")
        assert done.returncode == 0, done.stderr
        record = json.loads((out / "run.json").read_text())
        assert record["ranks"] == ranks
        assert (record["assignment"]["residue"] == 0) == (ranks > 2), record["assignment"]
        same_files(tmp_path / "1", out)
