"""Ranks of a benchmark's own, on this machine: `on_ranks()` calls a function on each.

``python -m himach.benchmarks.harness.ranks WORK ANSWER`` is one of them; ANSWER is a file.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from himach.errors import RankError
from himach.ranks.launch.pool import rank_environment
from himach.ranks.process_exit import promised_rank

__all__ = ["on_ranks"]


def on_ranks(ranks: int, function: Callable[..., Any], *arguments: object, apart: bool = False) -> Any:
    """Call ``function(world, *arguments)`` of a module on `ranks` ranks; return what rank 0's call did, through JSON.

    With `apart`, each rank is a node of its own.

    Raises
    ------
    RankError
        If there is no mpiexec, or a rank fails.
    """
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        raise RankError("a benchmark's ranks need MPICH: pip install 'himach[local]'")
    work = json.dumps([function.__module__, function.__name__, arguments, apart])
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer")
        command = [sys.executable, "-P", "-m", __spec__.name, work, str(answer)]
        words = [str(mpiexec), "-launcher", "fork", "-n", str(ranks), *command]
        done = subprocess.run(words, env=rank_environment(), check=False)
        if done.returncode:
            raise RankError(f"a rank failed, and mpiexec ended with exit code {done.returncode}")
        return json.loads(answer.read_text())


def _called(work: str) -> str | None:
    """Call the function with the world; return what it did on rank 0."""
    from himach.ranks.mpi import connect

    module, function, arguments, apart = json.loads(work)
    if apart:
        os.environ["HIMACH_NODE"] = f"node{promised_rank()}"
    world = connect()
    found = getattr(importlib.import_module(module), function)(world, *arguments)
    return json.dumps(found) if world.comm.rank == 0 else None


def _main(work: str, answer: str) -> None:
    if (text := _called(work)) is not None:
        Path(answer).write_text(text)


if __name__ == "__main__":
    _main(*sys.argv[1:])
