"""``himach bench start``: how long the command takes to answer, beside Python itself and its heavy libraries."""

from __future__ import annotations

import sys

from himach.bench.whole import medians, time_in_turn

__all__ = ["main"]


def main(repeats: int = 9) -> None:
    """Print the wall times of ``himach --help`` and of the imports that it does without."""
    python = [sys.executable, "-P"]
    seconds = time_in_turn(
        {
            "himach --help": [*python, "-m", "himach", "--help"],
            "python -c pass": [*python, "-c", "pass"],
            "import click": [*python, "-c", "import click"],
            "import MDAnalysis, mpi4py.MPI": [*python, "-c", "import MDAnalysis, mpi4py.MPI"],
        },
        repeats,
    )
    print(medians(seconds))
