"""`CpuBudget`: CPU time for background work, from idle cores and a small part of the analysis's time."""

from __future__ import annotations

import os
import time

FREE_SECONDS = 0.3  # allowed in any case: enough for all of a small trajectory
FREE_PART = 0.06  # allowed beyond that even if no core is idle, as a part of the analysis's CPU time
CHECK_SECONDS = 0.02  # between checks of the idle time, which the system counts in hundredths of a second


class CpuBudget:
    """The CPU time that a background thread may use.

    The system tells which cores are idle. A core is not idle while another rank or another program computes; it is idle
    while the analysis waits for the trajectory's disk.
    """

    def __init__(self, ranks: int = 1, *, only_idle: bool = False) -> None:
        self._ranks = ranks
        self._free_seconds, self._free_part = (0.0, 0.0) if only_idle else (FREE_SECONDS, FREE_PART)
        self._start_time = time.thread_time()
        self._checked_at = time.monotonic()
        self._idle_at_start = idle_seconds()
        self._idle_seconds = 0.0
        self._used_seconds = 0.0
        self._pieces = 0

    @property
    def cost(self) -> float:
        """Mean CPU seconds of a piece of work."""
        return self._used_seconds / max(1, self._pieces)

    def left(self) -> float:
        """Return the seconds that are left; only for the analysis's thread, which created this object."""
        now = time.monotonic()
        if now > self._checked_at + CHECK_SECONDS:
            self._checked_at = now
            self._idle_seconds = (idle_seconds() - self._idle_at_start) / self._ranks
        own_seconds = time.thread_time() - self._start_time
        return self._free_seconds + self._free_part * own_seconds + self._idle_seconds - self._used_seconds

    def take(self) -> None:
        """Record a finished piece of work; only for the thread that does nothing else."""
        self._used_seconds = time.thread_time()
        self._pieces += 1


def idle_seconds() -> float:
    """Return the seconds since boot for which the cores available to this process were idle, summed over cores."""
    names = {b"cpu%d" % core for core in os.sched_getaffinity(0)}
    try:
        with open("/proc/stat", "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"cpu")]
    except OSError:
        return 0.0
    # user, nice, system, idle, waiting for a disk, ...
    return sum(int(line[4]) + int(line[5]) for line in lines if line[0] in names) / os.sysconf("SC_CLK_TCK")
