"""Writers, assemblers and servers killed at random, and two assemblers at once: no frame is wrong, none is lost."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from himach.benchmarks.slices.kills import torment
from himach.io.push.held_slices import find_slices
from himach.io.store.store import Store

from .test_assembling import check, push, shared_out

ASSEMBLE = """
import sys
from pathlib import Path
from himach.io.store.store import Store
from himach.ranks.communicator import alone
from himach.staging.assembly.assemble import assemble
while not Path(sys.argv[2]).exists():
    assemble(alone(), Store(sys.argv[1]), "run7")
done = assemble(alone(), Store(sys.argv[1]), "run7")
assert not done.absent and not done.waiting, done
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_what_was_acknowledged_outlives_kills(tmp_path):
    """``himach bench slices --only kills`` does it 200 times."""
    outcome = torment(tmp_path / "torment", 25, random.Random(7))
    assert sum(outcome.kills.values()) == 25
    assert outcome.acknowledged > 0
    assert (outcome.wrong, outcome.lost) == ([], [])


def test_two_assemblers_and_a_writer_at_once(tmp_path):
    place, end = tmp_path / "store", tmp_path / "end"
    words = [sys.executable, "-c", ASSEMBLE, str(place), str(end)]
    assemblers = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for first in range(0, 400, 50):
        for rank, slices in enumerate(shared_out(range(first, first + 50), 3)):
            push(place, rank, slices)
    end.touch()
    for process in assemblers:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    check(place, range(400))
    assert find_slices(Store(place), "run7") == {}
