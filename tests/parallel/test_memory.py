"""Memory that the ranks of a node share, by MPI and where it has none."""

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec


@pytest.mark.parametrize("ranks", [2, 3])
def test_words_are_shared(ranks):
    run_under_mpiexec(Path(__file__).parent / "ranks_memory.py", ranks)
