"""Many runs over one `himach.Ranks`, in a process that does nothing else: a program of the tests.

It prints, after ten runs and after each fifteen more, the bytes, mappings, descriptors and segments that it and its
ranks hold.
"""

import sys
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import DCD, PSF

sys.path.insert(0, str(Path(__file__).parents[2]))

from ranks.launch.probes import at_frame, forker, waiting

import himach
from himach.benchmarks.runs.staying import Held, processes
from himach.examples import load


def runs(ranks: himach.Ranks, n: int) -> None:
    for _ in range(n):
        himach.run(load("rmsd")(selection="name CA"), DCD, PSF, stop=8, progress=False, ranks=ranks)
        with pytest.raises(himach.AnalysisError):
            at_frame(ranks, "1/0")
    assert len(waiting(ranks)) == ranks.size
    held = Held.now(processes())
    print(held.memory, held.mappings, held.descriptors, held.segments)


if __name__ == "__main__":
    with himach.Ranks(2) as stay:
        runs(stay, 10)
        process = forker(stay)
        for _ in range(3):
            runs(stay, 15)
        assert forker(stay) == process
