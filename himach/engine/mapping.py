"""The map loop: every frame of this rank's tasks goes through map() of every analysis, then through combine()."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.analysis import MAPPING, Analysis
from himach.engine.failures import RAISED, failure
from himach.engine.merging.merge import Merge
from himach.engine.pairs.block import SHARDS, Block
from himach.engine.pairs.emission import Emission
from himach.engine.pairs.stamps import Frames, FrameTable, Stamps
from himach.engine.shuffle.runs import Memory, OnDisk, Runs
from himach.engine.watch import Watch, changing_line
from himach.frame import Frame, RawFrame

#: Bytes of pairs that are put into order at a time: what a core's own cache holds.
CHUNK = 1 << 20

Steps = npt.NDArray[np.int64]
Take = Callable[[], Steps | None]
Read = Callable[[npt.NDArray[np.int64]], Iterator[RawFrame]]
Bind = Callable[[RawFrame, int], Frame]


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a mapper made of some frames, all of it.

    Attributes
    ----------
    blocks
        Pairs, whose `at` counts rows from `first` on.
    table
        The frames that have pairs: rows from `first` on.
    first
        The row that `table` begins with.
    steps
        All the frames, int64 (n,): positions in the selection.
    pairs
        How many map() yielded.
    """

    blocks: Sequence[Block]
    table: FrameTable
    first: int
    steps: Steps
    pairs: int


class Keeper(Protocol):
    """Keeps what map() gave, for later runs, and has some of it from earlier ones; there is one for a pass.

    Attributes
    ----------
    going_on
        Whether the frames that are left are to be mapped.
    """

    @property
    def going_on(self) -> bool:
        """Whether the frames that are left are to be mapped."""

    def restore(self, index: int, mapper: Mapper) -> Collection[int]:
        """Give the mapper of an analysis what was kept of it; return the steps that it has and another has not."""

    def due(self, nbytes: int) -> bool:
        """Tell, after each frame, whether what was mapped since the last time, of so many bytes, is to be kept now."""

    def keep(self, mapped: Sequence[Mapped]) -> None:
        """Keep what the mappers of all analyses made of some frames; called where it is due, and after the last."""

    def relieve(self) -> None:
        """Have mappers refer to what is kept of theirs on a disk, in place of holding it in memory."""

    def end(self) -> None:
        """End the map phase (collective); raises an error where frames are left."""


@dataclass(frozen=True)
class Work:
    """The frames of a rank: which they are, where they come from, and what is done beside mapping them.

    Attributes
    ----------
    frames
        The selected frame numbers.
    take
        Gives the steps (positions in `frames`) of this rank's next task, int64 and ascending; None after the last.
    read
        Gives the frames of frame numbers, in their order.
    bind
        For each analysis what turns a raw frame and its step into the frame that its map() gets.
    progress
        Called with the number of frames that this rank has done, after each.
    wait
        Called when this rank has done all its frames; may wait until the other ranks have, too.
    """

    frames: range
    take: Take
    read: Read
    bind: Sequence[Bind]
    progress: Callable[[int], object]
    wait: Callable[[], object] = lambda: None


def map_tasks(mappers: Sequence[Mapper], work: Work, keeper: Keeper | None = None) -> None:
    """Map the frames of all tasks."""
    for mapper in mappers:
        mapper.begin()
    _map_tasks(mappers, work, keeper)
    if keeper is not None:
        keep_now(mappers, keeper)
    for mapper in mappers:
        mapper.check(now=True)
        mapper.flush()
    work.wait()


def _map_tasks(mappers: Sequence[Mapper], work: Work, keeper: Keeper | None) -> None:
    frames = work.frames
    done, due = 0, 1
    single = mappers[0] if len(mappers) == 1 else None
    while (task := work.take()) is not None:
        # In order of frame number, also where the selection runs backwards: series are in that order.
        steps = task if frames.step > 0 else task[::-1]
        numbers = frames.start + frames.step * steps
        for step, raw in zip(steps.tolist(), work.read(numbers), strict=True):
            if single is not None:
                single.map(single.bound(raw, step))
            else:
                # All frames are bound before the first map(), which may write to the positions it gets.
                wanting = [mapper for mapper in mappers if step not in mapper.has]
                for mapper, frame in [(mapper, mapper.bound(raw, step)) for mapper in wanting]:
                    mapper.map(frame)
            done += 1
            if done == due:
                due *= 2
                for mapper in mappers:
                    mapper.check(now=done == 1)
            work.progress(done)
            if keeper is not None and keeper.due(sum(mapper.fresh_bytes for mapper in mappers)):
                keep_now(mappers, keeper)
                if not keeper.going_on:
                    return
        for mapper in mappers:
            mapper.check()


def keep_now(mappers: Sequence[Mapper], keeper: Keeper) -> None:
    """Have kept what was mapped since the last time, if map() has changed nothing that it must leave as it is."""
    for mapper in mappers:
        mapper.check(now=True)
    keeper.keep([mapper.taken() for mapper in mappers])


class Mapper:
    """Calls map() of one analysis and puts what it yields into `runs`, in chunks of whole frames.

    Attributes
    ----------
    runs
        What map() yielded so far, or combine() made of it.
    stamps
        The frames that these blocks know by their rows.
    pairs
        How many pairs map() yielded.
    has
        Steps that need not be mapped, while other analyses of the pass have use for them.
    fresh_bytes
        What was put into `runs` since `taken`, if that is to be called at all.
    """

    def __init__(
        self, analysis: Analysis, rank: int, frames: range, bind: Bind, memory: Memory, keeps: bool = False
    ) -> None:
        self.runs = Runs(memory)
        self.stamps = Stamps()
        self.pairs = 0
        self.has: Collection[int] = frozenset()
        self.fresh_bytes = 0
        self._keeps = keeps
        self._fresh: list[Block] = []
        self._steps: list[int] = []  # that were mapped since they were taken
        self._first = 0  # row of the first frame that was put since then
        self._pairs_before = 0
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
        if self._keeps:
            self._steps.append(frame.step)
        if emission.nbytes >= CHUNK:
            self.flush(last=False)

    def flush(self, last: bool = True) -> None:
        """Put the pairs of the frames that are done; unless it is the `last` time, bits with room for more wait."""
        self.pairs += self._emission.pairs
        blocks = self._combined() if self._combines else self._emission.close_chunk(SHARDS, last)
        nbytes = self.runs.put(blocks)
        if self._keeps:
            self._fresh += blocks
            self.fresh_bytes += nbytes

    def adopt(self, table: FrameTable, pairs: int, blocks: Sequence[Block], on_disk: Sequence[OnDisk] = ()) -> None:
        """Put what was mapped earlier: `pairs` pairs, whose frames are `table`, to come behind `len(self.stamps)`."""
        self.stamps.append(table)
        self.runs.put(blocks)
        self.runs.refer(on_disk)
        self.pairs += pairs
        self._first, self._pairs_before = len(self.stamps), self.pairs

    def taken(self) -> Mapped:
        """Return what was mapped since the last time, all that map() yielded for these frames."""
        self.flush()
        table = self.stamps.rows(self._first)
        steps = np.array(self._steps, dtype=np.int64)
        mapped = Mapped(self._fresh, table, self._first, steps, self.pairs - self._pairs_before)
        self._fresh, self._steps, self.fresh_bytes = [], [], 0
        self._first, self._pairs_before = len(self.stamps), self.pairs
        return mapped

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
