"""Starts a benchmark's own ranks on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from himach.errors import RankError

__all__ = ["mpiexec"]


def mpiexec(ranks: int, command: Sequence[str]) -> str:
    """Run a command on `ranks` ranks and return what they print.

    Raises
    ------
    RankError
        If there is no mpiexec, or a rank fails; with what it printed.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    words = [str(beside) if beside.exists() else "mpiexec", "-n", str(ranks), *command]
    environ = {**os.environ, "HYDRA_LAUNCHER": "fork"}  # on this machine, also inside a batch job
    try:
        done = subprocess.run(words, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        raise RankError("there is no mpiexec; pip install 'himach[local]' brings one") from None
    if done.returncode:
        raise RankError(f"the ranks of the benchmark ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
