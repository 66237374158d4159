"""Ranks of a benchmark's own, on this machine: `on_ranks()` calls a function on each.

``python -m himach.benchmarks.harness.ranks`` is one of them; with the words ``WORK ANSWER``, one that others started,
whose answer is a file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from himach.ranks.launch.parent_channel import ParentChannel
from himach.ranks.launch.pool import spawn
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
    work = json.dumps([function.__module__, function.__name__, arguments, apart])
    return json.loads(spawn([sys.executable, "-P", "-m", __spec__.name], ranks, work.encode()))


def _called(work: str) -> str | None:
    """Call the function with the world; return what it did on rank 0."""
    from himach.ranks.mpi import connect

    module, function, arguments, apart = json.loads(work)
    if apart:
        os.environ["HIMACH_NODE"] = f"node{promised_rank()}"
    world = connect()
    found = getattr(importlib.import_module(module), function)(world, *arguments)
    return json.dumps(found) if world.comm.rank == 0 else None


def _main(words: Sequence[str]) -> None:
    parent = None if words else ParentChannel.from_env()
    work = parent.work().decode() if parent is not None else words[0]
    if (answer := _called(work)) is None:
        return
    if parent is not None:
        parent.publish_result(answer.encode())
    else:
        Path(words[1]).write_text(answer)


if __name__ == "__main__":
    _main(sys.argv[1:])
