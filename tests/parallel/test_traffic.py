"""What ranks do by MPI does not grow with their number."""

import json
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import himach
from support.ranks import run_under_mpiexec
from support.threads import run_ranks

from himach.parallel.collective import from_first_rank

#: That a rank may receive in a run.
BYTES = 64_000
#: That the first rank may receive for each other one: what the record tells of it, and stamps of few frames.
OF_RANK = 1_000


def traffic(tmp_path, ranks):
    """Return what a run on so many ranks tells of its calls of MPI."""
    out = tmp_path / f"{ranks}"
    asked = ("-t", DCD, "-s", PSF, "-n", ranks, "--oversubscribe", "--cache", "off", "--out", out)
    done = himach("run", "rmsd", *asked)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "run.json").read_text())["mpi"]


@pytest.mark.nightly
def test_one_rank_calls_nothing(tmp_path):
    assert traffic(tmp_path, 1) == {"collectives": 0, "messages": 0, "received": 0}


@pytest.mark.nightly
def test_what_ranks_count():
    run_under_mpiexec(Path(__file__).with_name("ranks_traffic.py"), 3)


@pytest.mark.nightly
@pytest.mark.slow
def test_calls_and_bytes_of_a_rank_do_not_grow(tmp_path):
    found = {ranks: traffic(tmp_path, ranks) for ranks in (2, 4, 8, 16)}
    assert len({one["collectives"] for one in found.values()}) == 1, found
    assert all(0 < one["received"] < BYTES for one in found.values()), found
    assert found[16]["received"] - found[2]["received"] < 14 * OF_RANK, found


@pytest.mark.parametrize("nodes", [["a"], ["a", "a", "b"], ["b", "a", "b", "a", "a"]])
def test_a_large_value_comes_once_to_each_node(nodes):
    given = np.arange(1000)
    came = run_ranks(nodes, lambda world: from_first_rank(world, lambda: given))
    assert all(np.array_equal(one, given) for one in came)
    came[-1][:] = 0  # is its own
    assert np.array_equal(came[0], np.arange(1000) if len(nodes) > 1 else given)
