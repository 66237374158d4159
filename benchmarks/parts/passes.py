"""One pass of the engine over frames that are made up, for benchmarks of what it does with them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.engine import Memory, Passed, Work, run_pass
from himach.frame import Frame, RawFrame
from himach.parallel.communicator import Communicator

__all__ = ["timed_pass"]


def timed_pass(
    comm: Communicator,
    analysis: Analysis,
    frames: int,
    take: Callable[[], npt.NDArray[np.int64] | None],
    memory: Memory | None = None,
) -> tuple[float, Passed]:
    """Return the seconds of one pass over frames of one atom on the slowest rank (collective), and its outcome.

    `take` gives this rank its next frames, None at the end.
    """
    positions = np.zeros((1, 3), dtype=np.float32)
    comm.barrier()
    start = perf_counter()
    passed = run_pass(
        comm,
        [[analysis]],
        Work(
            range(frames),
            take,
            lambda numbers: (RawFrame(number, float(number), positions) for number in numbers.tolist()),
            [lambda raw, step: Frame(raw.number, step, raw.time, raw.positions, None, None, None, None)],
            lambda done: None,
        ),
        memory=memory,
    )
    return max(comm.allgather(perf_counter() - start)), passed
