"""Times whole processes in turn, so that a machine whose speed drifts drifts for all of them alike.

`run_in_turn()` runs contenders A B C, A B C, ... and keeps the wall time of every process, and what it says
itself of its inner phases. `time_in_turn()` is the same for plain commands. `on_cores()` gives all of them equally
many cores.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from himach.errors import HimachError

__all__ = ["Contender", "Times", "medians", "on_cores", "ratio", "run_in_turn", "time_in_turn"]

#: Seconds by contender and phase, one for each turn; the phase ``wall`` is the whole process.
Times = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Contender:
    """One of the processes that are timed in turn.

    Parameters
    ----------
    name
        What it is called in tables.
    command
        Program and arguments.
    before
        Called before each start, off the clock.
    phases
        Called after each end, off the clock, with what the process wrote to standard output; returns seconds by phase.
    warm
        Whether a run that does not count comes first; without, for what takes so long that its start does not matter.
    environ
        The process's environment; None for this process's own.
    """

    name: str
    command: Sequence[str]
    before: Callable[[], object] = lambda: None
    phases: Callable[[str], Mapping[str, float]] = lambda output: {}
    warm: bool = True
    environ: Mapping[str, str] | None = None


def run_in_turn(contenders: Sequence[Contender], repeats: int) -> Times:
    """Run every contender once uncounted, then all of them in turn, `repeats` times.

    Raises
    ------
    HimachError
        If a process fails; with what it printed.
    """
    times: Times = {contender.name: {} for contender in contenders}
    for turn in range(repeats + 1):
        for contender in contenders:
            if turn or contender.warm:
                seconds = _run(contender)
                for phase, value in seconds.items() if turn else ():
                    times[contender.name].setdefault(phase, []).append(value)
    return times


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
    HimachError
        If a command fails; with what it printed.
    """
    contenders = [Contender(name, command, environ=environ) for name, command in commands.items()]
    return {name: phases["wall"] for name, phases in run_in_turn(contenders, repeats).items()}


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


@contextlib.contextmanager
def on_cores(n: int) -> Iterator[None]:
    """Keep this process, and all that it starts, to `n` of the cores that it may use."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < n:
        raise HimachError(f"{n} cores are asked for and this process may use {len(allowed)}")
    os.sched_setaffinity(0, set(sorted(allowed)[:n]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _run(contender: Contender) -> dict[str, float]:
    contender.before()
    begun = time.perf_counter()
    done = subprocess.run(
        contender.command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=contender.environ, check=False
    )
    wall = time.perf_counter() - begun
    if done.returncode:
        raise HimachError(f"{contender.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return {"wall": wall, **contender.phases(done.stdout)}
