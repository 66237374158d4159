"""One pass of the engine over frames that are made up, for benchmarks of what it does with them."""

from collections.abc import Callable, Iterator
from itertools import repeat
from time import perf_counter

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.engine import Memory, Passed, RankFrames, run_pass
from himach.frame import Frame, RawFrame
from himach.ranks.communicator import World

__all__ = ["timed_pass"]


def timed_pass(
    world: World,
    analysis: Analysis,
    frames: int,
    take: Callable[[], npt.NDArray[np.int64] | None],
    memory: Memory | None = None,
    uneven: bool = False,
) -> tuple[float, Passed]:
    """Return the seconds of one pass over frames of one atom on the slowest rank (collective), and its outcome.

    `take` gives this rank its next frames, None at the end; where they are `uneven`, their times follow no rule, and
    each has a box of its own.
    """
    positions = np.zeros((1, 3), dtype=np.float32)

    def read(numbers: npt.NDArray[np.int64]) -> Iterator[RawFrame]:
        if not uneven:
            return (RawFrame(number, float(number), positions) for number in numbers.tolist())
        rng = np.random.default_rng(int(numbers[0]))
        times = (numbers + rng.random(len(numbers))).tolist()
        return map(RawFrame, numbers.tolist(), times, repeat(positions), rng.random((len(numbers), 6), np.float32))

    world.comm.barrier()
    start = perf_counter()
    passed = run_pass(
        world,
        [[analysis]],
        RankFrames(
            range(frames),
            take,
            read,
            [lambda raw, step: Frame(raw.number, step, raw.time, raw.positions, raw.box, None, None, None)],
            lambda done: None,
        ),
        memory=memory,
    )
    return max(world.comm.allgather(perf_counter() - start)), passed
