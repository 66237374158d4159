"""Ranks of a benchmark's own, on this machine: `on_ranks()` calls a function on each.

``python -m himach.benchmarks.harness.ranks MODULE FUNCTION ARGUMENTS ANSWER APART`` is one of them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from himach.parallel.environment import promised_rank
from himach.parallel.handover import Handover
from himach.parallel.spawn import run_ranks

__all__ = ["on_ranks"]


def on_ranks(ranks: int, function: Callable[..., Any], *arguments: object, apart: bool = False) -> Any:
    """Call ``function(world, *arguments)`` of a module on `ranks` ranks; return what rank 0's call did, through JSON.

    With `apart`, each rank is a node of its own.

    Raises
    ------
    RankError
        If there is no mpiexec, or a rank fails.
    """
    with tempfile.TemporaryDirectory(prefix="himach-bench-") as name, Handover() as handover:
        answer = Path(name) / "answer.json"
        words = [function.__module__, function.__name__, json.dumps(arguments), str(answer), "apart" if apart else ""]
        run_ranks([sys.executable, "-P", "-m", __spec__.name, *words], ranks, handover)
        return json.loads(answer.read_text())


def _work(module: str, function: str, arguments: str, answer: str, apart: str) -> None:
    from himach.parallel.mpi import connect

    if apart:
        os.environ["HIMACH_NODE"] = f"node{promised_rank()}"
    world = connect()
    found = getattr(importlib.import_module(module), function)(world, *json.loads(arguments))
    if world.comm.rank == 0:
        Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    _work(*sys.argv[1:])
