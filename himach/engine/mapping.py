"""The map loop: every frame of this rank's tasks goes through map() of every analysis, then through combine()."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from himach.analysis import MAPPING, Analysis
from himach.engine.clock import FrameCosts
from himach.engine.failures import RAISED, failure, find_place
from himach.engine.merging.merge import Merge
from himach.engine.pairs.block import Block
from himach.engine.pairs.emission import Emission, RowEmission, TableEmission
from himach.engine.shuffle.runs import OnDisk, Runs
from himach.engine.stamps import Frames, FrameTable, Stamps
from himach.engine.state_guard import Snapshot
from himach.errors import AnalysisError, HimachError, TrajectoryError
from himach.frame import Frame, RawFrame
from himach.parallel.last_words import frame_cell
from himach.selection import Selected, forward, numbers_at

if TYPE_CHECKING:
    from MDAnalysis import Universe

#: Bytes of pairs that are put into order at a time: what a core's own cache holds.
CHUNK_BYTES = 1 << 20
#: Bytes that a frame counts for whoever keeps what was mapped, and has its stamps as columns then.
FRAME_BYTES = 48

Steps = npt.NDArray[np.int64]
Take = Callable[[], Steps | None]
Read = Callable[[npt.NDArray[np.int64]], Iterator[RawFrame]]
Bind = Callable[[RawFrame, int], Frame]


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a mapper made of some frames, all of it."""

    blocks: Sequence[Block]  # pairs, whose `at` counts rows from `first` on
    first: int
    last: int
    pairs: int  # how many map() yielded
    _stamps: Stamps
    _steps: array[int]

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def table(self) -> FrameTable:
        """The frames that have pairs."""
        return self._stamps.table(self.first, self.last)

    @property
    def steps(self) -> Steps:
        """All the frames, int64 (n,): positions in the selection."""
        return np.array(self._steps, dtype=np.int64)


class Keeper(Protocol):
    """Keeps what map() gave, for later runs, and has some of it from earlier ones; there is one for a pass."""

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
    """The frames of a rank: which they are, where they come from, and what is done beside mapping them."""

    frames: Selected  # the selected frame numbers
    take: Take  # gives the steps (positions in `frames`) of this rank's next task, int64 and ascending
    read: Read  # gives the frames of frame numbers, in their order
    bind: Sequence[Bind]  # for each analysis what turns a raw frame and its step into the frame that its map() gets
    progress: Callable[[int], object]  # called with the number of frames that this rank has done, after each
    wait: Callable[[], object] = lambda: None  # called when this rank has done all its frames
    universes: Sequence[Universe | None] = ()  # for each analysis the Universe that its map() can reach
    guarded: bool = True  # whether it is looked for what map() changes of what setup() left


def map_tasks(mappers: Sequence[Mapper], work: Work, keeper: Keeper | None, costs: FrameCosts) -> None:
    """Map the frames of all tasks; `costs` gets how long they took."""
    for mapper, universe in zip(mappers, work.universes or [None] * len(mappers), strict=True):
        if work.guarded:
            mapper.begin(universe)
    with costs.all_tasks():
        _map_tasks(mappers, work, keeper, costs)
    frame_cell()[0] = 0
    if keeper is not None:
        keep_now(mappers, keeper)
    for mapper in mappers:
        mapper.flush()  # with combine(), which keeps nothing either
        mapper.check(now=True)
    work.wait()


def _map_tasks(mappers: Sequence[Mapper], work: Work, keeper: Keeper | None, costs: FrameCosts) -> None:
    frames = work.frames
    done, due = 0, 1
    # The way of most passes, without a call that it can do without.
    single, bind = (mappers[0] if len(mappers) == 1 else None), work.bind[0]
    at = frame_cell()
    while (task := work.take()) is not None:
        # In order of frame number, also where the selection runs backwards: series are in that order.
        steps = task if forward(frames) else task[::-1]
        numbers = numbers_at(frames, steps)
        for step, raw in costs.watch(zip(steps.tolist(), work.read(numbers), strict=True), len(steps)):
            at[0] = raw.number + 1
            if single is not None:
                try:
                    frame = bind(raw, step)
                except RAISED as error:
                    raise single.binding_error(raw, step, error) from error
                single.map(frame)
            else:
                # All frames are bound before the first map(), which may write to the positions it gets; the first
                # one's last, whose positions are the raw frame's own, and whose transformations write to them.
                unmapped = [mapper for mapper in mappers if step not in mapper.restored_steps]
                for mapper, frame in [(mapper, mapper.bind_frame(raw, step)) for mapper in unmapped[::-1]][::-1]:
                    mapper.map(frame)
            done += 1
            if done == due:
                due *= 2
                for mapper in mappers:
                    mapper.check(now=done == 1, last=False)
                    mapper.foresee(done)
            work.progress(done)
            if keeper is not None and keeper.due(sum(mapper.fresh_bytes for mapper in mappers)):
                keep_now(mappers, keeper)
                if not keeper.going_on:
                    return
        for mapper in mappers:
            mapper.check(last=False)


def keep_now(mappers: Sequence[Mapper], keeper: Keeper) -> None:
    """Have kept what was mapped since the last time, if map() has changed nothing that it must leave as it is."""
    mapped = [mapper.take_mapped() for mapper in mappers]
    for mapper in mappers:
        mapper.check(now=True)
    keeper.keep(mapped)


class Mapper:
    """Calls map() of one analysis and puts what it yields into `runs`, in chunks of whole frames."""

    def __init__(
        self, analysis: Analysis, rank: int, frames: Selected, bind: Bind, runs: Runs, keeps: bool = False
    ) -> None:
        self.runs = runs
        self.stamps = Stamps()
        self.pairs = 0
        self.restored_steps: Collection[int] = frozenset()
        self.fresh_bytes = 0
        self._keeps = keeps
        self._fresh: list[Block] = []
        self._steps = array("q")  # that were mapped since they were taken
        self._first = 0  # row of the first frame that was put since then
        self._pairs_before = 0
        self._analysis = analysis
        self._state = vars(analysis)
        self._rank = rank
        self._frames = frames
        self._bind = bind
        self._combines = analysis.defines("combine")
        self._guard: Snapshot | None = None
        self._change: tuple[AnalysisError, Frame] | None = None  # that map() made, and the frame at which it was seen
        self._frame: Frame | None = None  # the last one
        self._foreseen = False
        self._unchanged: int | None = None  # number of the last one after which nothing had changed
        self._emission = Emission(Stamps()) if self._combines else self._new_emission(analysis)

    def _new_emission(self, analysis: Analysis) -> Emission:
        if analysis.then is not None:
            return Emission(self.stamps, self.runs.room)
        kind = TableEmission if analysis.yields_rows() else RowEmission
        return kind(self.stamps, self.runs.room, self._frames)

    def begin(self, universe: Universe | None) -> None:
        """Remember what setup() left on the analysis, and on its Universe."""
        try:
            self._guard = Snapshot(self._analysis, universe)
        except AnalysisError as error:
            raise failure(self._analysis, "map", error, self._rank) from None

    def check(self, now: bool = False, last: bool = True) -> None:
        """Refuse what map() changed of that; unless it must be `now`, only where the last look is long ago.

        Where it is not the `last` time, an array may be written to once more, so that numpy tells by which line.
        """
        guard, frame = self._guard, self._frame
        if guard is None or frame is None or not (now or guard.due):
            return
        change = guard.change()
        if change is None:
            self._unchanged = frame.number
            return
        self._change = change, frame
        if last or not guard.frozen:
            self._refuse()

    def _refuse(self, error: BaseException | None = None) -> None:
        """Raise the error of what map() changed, at the line that `error` tells."""
        assert self._change is not None and self._guard is not None
        self._guard.release()
        change, frame = self._change
        place = None if error is None else find_place(self._analysis, "map", error)
        raise failure(self._analysis, "map", change, self._rank, frame, since=self._unchanged, place=place) from None

    def foresee(self, done: int) -> None:
        """Warn, once, of what will not fit, by what `done` frames gave: a table of rows, or the series of a key."""
        memory, mapped = self.runs.memory, max(done, len(self.stamps))
        if self._foreseen or self._rank:
            return
        ratio, limit = len(self._frames) / mapped, memory.table if self._emission.tabled else memory.limit
        largest = int(self.runs.sizes().sum())
        if largest * ratio > limit and not self._emission.tabled:
            largest = self.runs.largest()
        if largest * ratio <= limit:
            return
        self._foreseen = True
        figures = f"{largest / mapped:,.0f} bytes a frame", f"{largest * ratio / 1e9:.2g} GB", f"{limit / 1e9:.2g} GB"
        if self._emission.tabled:
            text = (
                "its table has some {}, {} in all frames, and {} may be taken: name a directory (out), into which its "
                "rows are written"
            )
        else:
            text = (
                "map() yields some {} for one key, {} in all frames, for one rank to hold at reduce(), where pairs may "
            )
            text += (
                "take {}: yield a himach.Row a frame, fold values in combine(), divide the key into finer ones, let "
                "pairs take more memory"
            )
        memory.warn(f"{self._analysis.label()}: {text.format(*figures)}, or select fewer frames")

    def bind_frame(self, raw: RawFrame, step: int) -> Frame:
        """Return the frame for `map()`, after the transformations that setup() added."""
        try:
            return self._bind(raw, step)
        except RAISED as error:
            raise self.binding_error(raw, step, error) from error

    def binding_error(self, raw: RawFrame, step: int, error: BaseException) -> HimachError:
        """Return the error of a frame that could not be bound."""
        if isinstance(error, TrajectoryError):
            return TrajectoryError(str(error))
        frame = Frame(raw.number, step, raw.time, raw.positions, raw.box, raw.velocities, raw.forces, None)
        return failure(self._analysis, "setup", error, self._rank, frame, part="'s transformations")

    def map(self, frame: Frame) -> None:
        """Map one frame."""
        analysis, emission, state = self._analysis, self._emission, self._state
        self._frame = frame
        emission.begin(frame.step, frame.time, frame.pair_box)
        items = None
        state[MAPPING] = True
        try:
            items = analysis.map(frame)
            emission.extend(items)
        except RAISED as error:
            if self._change is not None and isinstance(error, ValueError):  # numpy's, of an array that is read-only
                self._refuse(error)
            raise failure(analysis, "map", error, self._rank, frame, items=items) from error
        finally:
            state[MAPPING] = False
        if self._change is not None:
            self._refuse()
        if self._keeps:
            self._steps.append(frame.step)
            self.fresh_bytes += FRAME_BYTES
        if emission.nbytes >= CHUNK_BYTES:
            self.flush(last=False)

    def flush(self, last: bool = True) -> None:
        """Put the pairs of the frames that are done; unless it is the `last` time, bits with room for more wait."""
        self.pairs += self._emission.pairs
        blocks = self._combine() if self._combines else self._emission.close_chunk(self.runs.shards, last)
        stored = self.runs.put(blocks)
        if self._keeps:
            self._fresh += stored
            self.fresh_bytes += sum(block.nbytes for block in stored)

    def adopt(self, table: FrameTable, pairs: int, blocks: Sequence[Block], on_disk: Sequence[OnDisk] = ()) -> None:
        """Put what was mapped earlier: `pairs` pairs, whose frames are `table`, to come behind `len(self.stamps)`."""
        self.stamps.append(table)
        self.runs.put(blocks)
        self.runs.refer(on_disk)
        self.pairs += pairs
        self._first, self._pairs_before = len(self.stamps), self.pairs

    def take_mapped(self) -> Mapped:
        """Return what was mapped since the last time, all that map() yielded for these frames."""
        self.flush()
        self.stamps.seal()
        pairs = self.pairs - self._pairs_before
        mapped = Mapped(self._fresh, self._first, len(self.stamps), pairs, self.stamps, self._steps)
        self._fresh, self._steps, self.fresh_bytes = [], array("q"), 0
        self._first, self._pairs_before = len(self.stamps), self.pairs
        return mapped

    def _combine(self) -> list[Block]:
        """Return the chunk with one value per key, in place of all that map() yielded."""
        blocks, table = self._emission.close_chunk(1), self._emission.stamps.table()
        frames = Frames.joined([table], forward=forward(self._frames))
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
        return folded.close_chunk(self.runs.shards)
