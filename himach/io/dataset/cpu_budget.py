"""What work behind an analysis may take of the cores: `CpuBudget`, what they are idle, and a small part of its time."""

from __future__ import annotations

import os
import time

FREE_SECONDS = 0.3  # that the work takes in any case: all of a small trajectory ...
FREE_PART = 0.06  # ... and what it takes beyond that, as part of the analysis's own, also where no core is idle
CHECK_SECONDS = 0.02  # between two looks at what is idle, which the system counts in hundredths of a second


class CpuBudget:
    """The time of a core that a thread may take.

    Whether a core is idle is the system's word: it is neither while another rank computes, nor while a stranger's
    program does; it is while the analysis waits for the disk that the trajectory is on.
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
        """Seconds that a piece of work has taken in the mean."""
        return self._used_seconds / max(1, self._pieces)

    def left(self) -> float:
        """Return the seconds that may still be taken; for the thread of the analysis, which made this object."""
        now = time.monotonic()
        if now > self._checked_at + CHECK_SECONDS:
            self._checked_at = now
            self._idle_seconds = (idle_seconds() - self._idle_at_start) / self._ranks
        own_seconds = time.thread_time() - self._start_time
        return self._free_seconds + self._free_part * own_seconds + self._idle_seconds - self._used_seconds

    def take(self) -> None:
        """Note that a piece of work is done; by the thread that does nothing else."""
        self._used_seconds = time.thread_time()
        self._pieces += 1


def idle_seconds() -> float:
    """Return how long the cores that this process may use have been idle since the machine began, together."""
    names = {b"cpu%d" % core for core in os.sched_getaffinity(0)}
    try:
        with open("/proc/stat", "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"cpu")]
    except OSError:
        return 0.0
    # user, nice, system, idle, waiting for a disk, ...
    return sum(int(line[4]) + int(line[5]) for line in lines if line[0] in names) / os.sysconf("SC_CLK_TCK")
