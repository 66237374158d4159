"""The map loop: every frame of this rank's tasks goes through map() of every analysis, then through combine()."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.engine.columns import SHARDS, Block
from himach.engine.emission import Emission
from himach.engine.failures import RAISED, failure
from himach.engine.merge import Merge
from himach.engine.runs import Runs
from himach.frame import Frame, RawFrame

__all__ = ["Bind", "Mapper", "Read", "Steps", "Take", "map_tasks"]

#: Pairs that make a block: larger tasks are divided, and tasks of less than a quarter of it are put together.
CHUNK = 1 << 16

Steps = npt.NDArray[np.int64]
Take = Callable[[], Steps | None]
Read = Callable[[npt.NDArray[np.int64]], Iterator[RawFrame]]
Bind = Callable[[RawFrame, int], Frame]


def map_tasks(
    mappers: Sequence[Mapper], frames: range, take: Take, read: Read, progress: Callable[[int], object]
) -> None:
    """Map the frames of all tasks that `take` gives (see `himach.engine.run_pass`)."""
    done = 0
    while (task := take()) is not None:
        # In order of frame number, also where the selection runs backwards: series are in that order.
        steps = task if frames.step > 0 else task[::-1]
        numbers = frames.start + frames.step * steps
        for step, raw in zip(steps.tolist(), read(numbers), strict=True):
            # All frames are bound before the first map(), which may write to the positions it gets.
            for mapper, frame in [(mapper, mapper.bound(raw, step)) for mapper in mappers]:
                mapper.map(frame)
            done += 1
            progress(done)
        for mapper in mappers:
            mapper.finish(task)
    for mapper in mappers:
        mapper.flush()


class Mapper:
    """Calls map() of one analysis and puts what it yields into `runs`, whole tasks at a time.

    Attributes
    ----------
    runs
        The blocks of finished tasks.
    pairs
        How many pairs map() yielded.
    """

    def __init__(self, analysis: Analysis, rank: int, frames: range, bind: Bind) -> None:
        self.runs = Runs()
        self.pairs = 0
        self._analysis = analysis
        self._rank = rank
        self._frames = frames
        self._bind = bind
        self._combines = analysis.defines("combine")
        self._emission = Emission()
        self._blocks: list[Block] = []
        self._tasks: list[Steps] = []

    def bound(self, raw: RawFrame, step: int) -> Frame:
        """Return the frame for `map()`, after the transformations that setup() added."""
        try:
            return self._bind(raw, step)
        except RAISED as error:
            frame = Frame(raw.number, step, raw.time, raw.positions, raw.box, raw.velocities, raw.forces, None)
            part = "'s transformations"
            raise failure(self._analysis, "setup", error, self._rank, frame, part=part) from error

    def map(self, frame: Frame) -> None:
        """Map one frame."""
        analysis, emission = self._analysis, self._emission
        emission.begin(frame.step, frame.time, frame.box)
        items = None
        analysis.freeze(True)
        try:
            items = analysis.map(frame)
            emission.extend(items)
        except RAISED as error:
            raise failure(analysis, "map", error, self._rank, frame, items=items) from error
        finally:
            analysis.freeze(False)
        if emission.pairs >= CHUNK:
            self._freeze()

    def finish(self, task: Steps) -> None:
        """Take note that a task is done; its blocks are put when they are large enough."""
        self._tasks.append(task)
        if self._blocks or self._emission.pairs * 4 >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Put the blocks of the tasks that are done."""
        self._freeze()
        if self._tasks:
            self.runs.put(np.concatenate(self._tasks), self._blocks)
        self._tasks, self._blocks = [], []

    def _freeze(self) -> None:
        self.pairs += self._emission.pairs
        self._blocks += self._combined() if self._combines else self._emission.freeze(SHARDS)

    def _combined(self) -> list[Block]:
        """Return the chunk with one value per key, in place of all that map() yielded."""
        folded = Emission()
        rows: dict[int, int] = {}
        for key, series in Merge(self._emission.freeze(1), self._frames).groups():
            step, time, box = series.first()
            try:
                value = self._analysis.combine(key, series)
                if step in rows:
                    folded.resume(rows[step])
                else:
                    rows[step] = folded.begin(step, time, box)
                folded.add(key, value)
            except RAISED as error:
                raise failure(self._analysis, "combine", error, self._rank, key=(key,)) from error
        return folded.freeze(SHARDS)
