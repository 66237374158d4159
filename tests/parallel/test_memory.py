"""Memory that the ranks of a node share, by MPI and where it has none."""

from pathlib import Path

from support.ranks import run_under_mpiexec


def test_words_are_shared():
    run_under_mpiexec(Path(__file__).parent / "ranks_memory.py", 3)
