"""``himach bench start``: how long the command and a short run take, beside Python itself and its heavy libraries."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from himach.bench.adk import adk
from himach.bench.whole import medians, ratio, time_in_turn

__all__ = ["main"]

FRAMES = 10
IMPORTS = "import MDAnalysis, mpi4py.MPI"
RUN = f"himach run, {FRAMES} cached frames"


def main(repeats: int = 9) -> None:
    """Print the wall times of ``himach --help``, of a run over ten cached frames, and of the imports alone.

    The frames are AdK's in water (47,681 atoms). All processes find their modules compiled, as pip leaves them.
    """
    topology, trajectory = adk(FRAMES)
    python = [sys.executable, "-P"]
    with tempfile.TemporaryDirectory(prefix="himach-bench-") as name:
        environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(name, "compiled"))}
        run = [*python, "-m", "himach", "run", "rmsd", "--trajectory", str(trajectory), "--topology", str(topology)]
        run += ["-p", "selection=name CA", "--cache", str(Path(name, "store")), "--quiet"]
        seconds = time_in_turn(
            {
                "himach --help": [*python, "-m", "himach", "--help"],
                RUN: run,
                "python -c pass": [*python, "-c", "pass"],
                "import click": [*python, "-c", "import click"],
                IMPORTS: [*python, "-c", IMPORTS],
            },
            repeats,
            environ,
        )
    print(medians(seconds))
    print(f"{RUN} / {IMPORTS}: {ratio(seconds, RUN, IMPORTS):.2f} (bar: at most 1.3)")
