"""Many runs over the same ranks leave nothing behind that grows, whether they end well or not."""

from __future__ import annotations

import time

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from runner.staying.probes import at_frame, found, pid

import himach
from himach.benchmarks.runs.staying import Held, processes
from himach.examples import load


def runs(ranks, n: int) -> Held:
    for _ in range(n):
        himach.run(load("rmsd")(selection="name CA"), DCD, PSF, progress=False, ranks=ranks)
        with pytest.raises(himach.AnalysisError):
            at_frame(ranks, "1/0")
    found(ranks, "found = 1")
    time.sleep(0.5)  # ranks become as new after the run
    return Held.now(processes())


@pytest.mark.slow
def test_fifty_runs_leave_what_ten_leave():
    with himach.Ranks(2) as ranks:
        before = runs(ranks, 10)
        rank = pid(ranks)
        after = runs(ranks, 40)
        assert pid(ranks) == rank
    assert after.descriptors == before.descriptors
    assert after.segments <= before.segments + 4, "others use it, too"
    assert after.memory < before.memory + 4e6
