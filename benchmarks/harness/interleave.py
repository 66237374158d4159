"""Times things in turn, so that a machine whose speed drifts drifts for all of them alike.

`run_in_turn()` runs processes A B C, A B C, ... and keeps the wall time of each, and what it says itself of its inner
phases. `call_in_turn()` does the same with calls in this process. `on_cores()` gives all of them equally many cores,
`scratch()` a folder on the disk to measure.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from himach.errors import HimachError

__all__ = ["Contender", "Times", "call_in_turn", "checked", "on_cores", "run_in_turn", "scratch", "seconds"]

#: Seconds by contender and phase, one for each turn; the phase ``wall`` is the whole process, ``cpu`` the
#: processor time of it and of all that it started.
Times = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Contender:
    """One of the processes that are timed in turn: what tables call it, its program and arguments."""

    name: str
    command: Sequence[str]
    #: Called before each start, off the clock.
    before: Callable[[], object] = lambda: None
    #: Called after each end, off the clock, with what the process wrote to standard output; returns seconds by phase.
    phases: Callable[[str], Mapping[str, float]] = lambda output: {}
    #: Whether a run that does not count comes first; without, for what takes so long that its start does not matter.
    warm: bool = True
    #: The same of another version, which runs just before this one in every turn.
    twin: "Contender | None" = None


def run_in_turn(contenders: Sequence[Contender], repeats: int) -> Times:
    """Run every contender once uncounted, then all in turn, `repeats` times; one that fails is a HimachError."""
    sides = [side for each in contenders for side in (each.twin, each) if side is not None]
    times: Times = {side.name: {} for side in sides}
    for turn in range(repeats + 1):
        for side in sides:
            if turn or side.warm:
                side.before()
                begun, cpu = time.perf_counter(), _cpu_of_children()
                output = checked(side.command, side.name)
                wall = time.perf_counter() - begun
                found = {"wall": wall, "cpu": _cpu_of_children() - cpu, **side.phases(output)}
                for phase, value in found.items() if turn else ():
                    times[side.name].setdefault(phase, []).append(value)
    return times


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def checked(command: Sequence[str], name: str | None = None) -> str:
    """Return what a process prints; one that fails is a HimachError, with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise HimachError(f"{name or ' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long `work` takes by `clock`."""
    start = clock()
    work()
    return clock() - start


def call_in_turn(
    works: Mapping[str, Callable[[], object]],
    repeats: int,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each call by `clock`, all in turn; `before` is called before each, off the clock."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            before()
            times[name].append(seconds(work, clock))
    return {name: median(values) for name, values in times.items()}


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


@contextlib.contextmanager
def scratch(directory: str | os.PathLike[str] | None, needed: int = 0) -> Iterator[Path]:
    """Give a folder on the disk to measure, ``/var/tmp`` by default; without `needed` bytes there, a HimachError."""
    base = directory or "/var/tmp"
    free = shutil.disk_usage(base).free
    if free < needed:
        raise HimachError(f"cannot be measured here: {base} has {free >> 20} MiB free, {needed >> 20} MiB are needed")
    with tempfile.TemporaryDirectory(dir=base, prefix="himach-bench-", ignore_cleanup_errors=True) as place:
        yield Path(place)
