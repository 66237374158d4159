"""The map loop: every frame of this rank's tasks goes through map() of every analysis, then through combine()."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from himach.analysis import MAPPING, Analysis
from himach.engine.failures import RAISED, failure
from himach.engine.merging.merge import Merge
from himach.engine.pairs.block import SHARDS, Block
from himach.engine.pairs.emission import Emission
from himach.engine.pairs.stamps import Frames, Stamps
from himach.engine.shuffle.runs import Memory, Runs
from himach.engine.watch import Watch, changing_line
from himach.frame import Frame, RawFrame

#: Bytes of pairs that are put into order at a time: what a core's own cache holds.
CHUNK = 1 << 20

Steps = npt.NDArray[np.int64]
Take = Callable[[], Steps | None]
Read = Callable[[npt.NDArray[np.int64]], Iterator[RawFrame]]
Bind = Callable[[RawFrame, int], Frame]


def map_tasks(
    mappers: Sequence[Mapper], frames: range, take: Take, read: Read, progress: Callable[[int], object]
) -> None:
    """Map the frames of all tasks that `take` gives (see `himach.engine.run_pass`)."""
    done, due = 0, 1
    single = mappers[0] if len(mappers) == 1 else None
    for mapper in mappers:
        mapper.begin()
    while (task := take()) is not None:
        # In order of frame number, also where the selection runs backwards: series are in that order.
        steps = task if frames.step > 0 else task[::-1]
        numbers = frames.start + frames.step * steps
        for step, raw in zip(steps.tolist(), read(numbers), strict=True):
            if single is not None:
                single.map(single.bound(raw, step))
            else:
                # All frames are bound before the first map(), which may write to the positions it gets.
                for mapper, frame in [(mapper, mapper.bound(raw, step)) for mapper in mappers]:
                    mapper.map(frame)
            done += 1
            if done == due:
                due *= 2
                for mapper in mappers:
                    mapper.check(now=done == 1)
            progress(done)
        for mapper in mappers:
            mapper.check()
    for mapper in mappers:
        mapper.check(now=True)
        mapper.flush()


class Mapper:
    """Calls map() of one analysis and puts what it yields into `runs`, in chunks of whole frames.

    `stamps` are the frames that these blocks know by their rows, `pairs` is how many pairs map() yielded.
    """

    def __init__(self, analysis: Analysis, rank: int, frames: range, bind: Bind, memory: Memory) -> None:
        self.runs = Runs(memory)
        self.stamps = Stamps()
        self.pairs = 0
        self._analysis = analysis
        self._state = vars(analysis)
        self._rank = rank
        self._frames = frames
        self._bind = bind
        self._combines = analysis.defines("combine")
        self._watch: Watch | None = None
        self._frame: Frame | None = None  # the last one
        self._unchanged: int | None = None  # number of the last one after which nothing had changed
        self._emission = Emission(Stamps()) if self._combines else Emission(self.stamps, self.runs.room)

    def begin(self) -> None:
        """Begin to watch what setup() left on the analysis."""
        self._watch = Watch(self._analysis)

    def check(self, now: bool = False) -> None:
        """Refuse what map() changed of that; unless it must be `now`, only where the last look is long ago."""
        watch, frame = self._watch, self._frame
        if watch is None or frame is None or not (now or watch.due):
            return
        kept = watch.changed()
        if kept is None:
            self._unchanged = frame.number
            return
        error, place = watch.error(kept), changing_line(kept, partial(self._again, frame))
        since = self._unchanged if place is None else None
        raise failure(self._analysis, "map", error, self._rank, frame, since=since, place=place)

    def _again(self, frame: Frame) -> None:
        """Map a frame once more, for nothing."""
        for _ in self._analysis.map(frame) or ():
            pass

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
        analysis, emission, state = self._analysis, self._emission, self._state
        self._frame = frame
        emission.begin(frame.step, frame.time, frame.box)
        items = None
        state[MAPPING] = True
        try:
            items = analysis.map(frame)
            emission.extend(items)
        except RAISED as error:
            raise failure(analysis, "map", error, self._rank, frame, items=items) from error
        finally:
            state[MAPPING] = False
        if emission.nbytes >= CHUNK:
            self.flush(last=False)

    def flush(self, last: bool = True) -> None:
        """Put the pairs of the frames that are done; unless it is the `last` time, bits with room for more wait."""
        self.pairs += self._emission.pairs
        self.runs.put(self._combined() if self._combines else self._emission.close_chunk(SHARDS, last))

    def _combined(self) -> list[Block]:
        """Return the chunk with one value per key, in place of all that map() yielded."""
        blocks, table = self._emission.close_chunk(1), self._emission.stamps.table()
        frames = Frames.joined([table], forward=self._frames.step > 0)
        self._emission = Emission(Stamps())
        folded = Emission(self.stamps)
        rows: dict[int, int] = {}
        for key, series in Merge([blocks], frames, self._frames).groups():
            step, time, box = series.first()
            try:
                value = self._analysis.combine(key, series)
                if step in rows:
                    folded.resume(rows[step])
                else:
                    folded.begin(step, time, box)
                    rows[step] = folded.row()
                row = series.row(value)
                if row is None:
                    folded.add(key, value)
                else:
                    folded.add_row(key, row)
            except RAISED as error:
                raise failure(self._analysis, "combine", error, self._rank, key=(key,)) from error
        return folded.close_chunk(SHARDS)
