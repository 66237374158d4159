"""Times whole processes in turn, so that a machine whose speed drifts drifts for all of them alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence

__all__ = ["medians", "ratio", "time_in_turn"]


def time_in_turn(
    commands: Mapping[str, Sequence[str]], repeats: int, environ: Mapping[str, str] | None = None
) -> dict[str, list[float]]:
    """Return the wall times in seconds of each command: A B C, A B C, ..., after one round that does not count.

    Parameters
    ----------
    commands
        By name.
    repeats
        Rounds that count.
    environ
        Their environment; None for this process's own.

    Raises
    ------
    RuntimeError
        If a command fails; with what it printed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    env = dict(os.environ if environ is None else environ)
    for turn in range(repeats + 1):
        for name, command in commands.items():
            begun = time.perf_counter()
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env, check=False
            )
            taken = time.perf_counter() - begun
            if done.returncode:
                raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
            if turn:
                seconds[name].append(taken)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return a table of each command's median, lowest and highest wall time."""
    width = max(map(len, seconds))
    rows = [f"{'':<{width}}  median     min     max  (seconds, whole process)"]
    for name, values in seconds.items():
        rows.append(f"{name:<{width}}  {statistics.median(values):6.2f}  {min(values):6.2f}  {max(values):6.2f}")
    return "\n".join(rows)


def ratio(seconds: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Return the median over turns of one command's time over the other's in the same turn."""
    return statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))
