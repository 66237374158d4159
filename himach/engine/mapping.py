"""The map loop: calls map() of every analysis for each frame of this rank's tasks, then combine()."""

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from himach.analysis import MAPPING, Analysis
from himach.engine.clock import FrameCosts
from himach.engine.failures import RAISED, at_frame, failure, for_key
from himach.engine.merging.merge import Merge
from himach.engine.pairs.block import Block
from himach.engine.pairs.emission import Emission, RowEmission, TableEmission
from himach.engine.shuffle.runs import Runs
from himach.engine.stamps import Frames, FrameTable, Stamps
from himach.engine.state_guard import Snapshot
from himach.errors import AnalysisError, HimachError, TrajectoryError
from himach.frame import Frame, RawFrame
from himach.ranks.last_words import frame_cell
from himach.selection import Selected, forward, numbers_at

if TYPE_CHECKING:
    from MDAnalysis import Universe

#: Bytes of pairs sorted at a time: they fit in a core's private cache.
CHUNK_BYTES = 1 << 20
#: Bytes counted per frame for a keeper, which holds the stamps of frames as columns.
FRAME_BYTES = 48

Steps = npt.NDArray[np.int64]
Take = Callable[[], Steps | None]
Read = Callable[[npt.NDArray[np.int64]], Iterator[RawFrame]]
Bind = Callable[[RawFrame, int], Frame]


@dataclass(frozen=True, slots=True)
class Mapped:
    """The complete output of a mapper for some frames."""

    blocks: Sequence[Block]  # pairs; `at` counts rows from `first`
    first: int
    last: int
    pairs: int  # number of pairs that map() yielded
    _stamps: Stamps
    _steps: "array[int]"

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def table(self) -> FrameTable:
        """Frames that have pairs."""
        return self._stamps.table(self.first, self.last)

    @property
    def steps(self) -> Steps:
        """Steps of all frames, int64 (n,): positions in the selection."""
        return np.array(self._steps, dtype=np.int64)


class Keeper(Protocol):
    """Stores the output of map() for later runs and restores that of earlier runs; one per pass."""

    @property
    def going_on(self) -> bool:
        """Whether to map the remaining frames."""

    def restore(self, index: int, mapper: "Mapper") -> Collection[int]:
        """Pass kept pairs to the mapper of an analysis; return the steps that it has and another analysis lacks."""

    def due(self, nbytes: int) -> bool:
        """Return whether to store the `nbytes` mapped since the last call of `keep`; called after each frame."""

    def keep(self, mapped: Sequence[Mapped]) -> None:
        """Store the output of all mappers for some frames; called when due, and after the last frame."""

    def end(self) -> None:
        """End the map phase (collective); raise an error if frames remain."""


@dataclass(frozen=True)
class RankFrames:
    """The frames of a rank: their numbers, their source, and what is called besides map()."""

    frames: Selected  # the selected frame numbers
    take: Take  # returns the steps (positions in `frames`) of this rank's next task, int64, ascending
    read: Read  # yields the frames of given frame numbers, in that order
    bind: Sequence[Bind]  # per analysis: converts a raw frame and its step into the frame passed to map()
    progress: Callable[[int], object]  # called after each frame with the number of frames done on this rank
    wait: Callable[[], object] = lambda: None  # called when this rank has done all its frames
    universes: "Sequence[Universe | None]" = ()  # per analysis: the Universe that its map() can reach
    guarded: bool = True  # whether to check that map() leaves the state of setup() unchanged


def map_tasks(mappers: "Sequence[Mapper]", work: RankFrames, keeper: Keeper | None, costs: FrameCosts) -> None:
    """Map the frames of all tasks; record their times in `costs`."""
    for mapper, universe in zip(mappers, work.universes or [None] * len(mappers), strict=True):
        if work.guarded:
            mapper.begin(universe)
    with costs.all_tasks():
        _map_tasks(mappers, work, keeper, costs)
    frame_cell()[0] = 0
    if keeper is not None:
        keep_now(mappers, keeper)
    for mapper in mappers:
        mapper.flush()  # calls combine(), which must not change state either
        mapper.check(now=True)
    work.wait()


def _map_tasks(mappers: "Sequence[Mapper]", work: RankFrames, keeper: Keeper | None, costs: FrameCosts) -> None:
    frames = work.frames
    done, due = 0, 1
    # Most passes have one analysis: avoid function calls per frame for it.
    single, bind = (mappers[0] if len(mappers) == 1 else None), work.bind[0]
    at = frame_cell()
    while (task := work.take()) is not None:
        # Series are in order of frame number, also if the selection runs backwards.
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
                # Bind all frames before the first map(), which may write to its positions. Bind the first one last:
                # it shares the positions of the raw frame, and its transformations write to them.
                unmapped = [mapper for mapper in mappers if step not in mapper.restored_steps]
                for mapper, frame in [(mapper, mapper.bind_frame(raw, step)) for mapper in unmapped[::-1]][::-1]:
                    mapper.map(frame)
            done += 1
            if done == due:
                due *= 2
                for mapper in mappers:
                    mapper.check(now=done == 1)
                    mapper.foresee(done)
            work.progress(done)
            if keeper is not None and keeper.due(sum(mapper.fresh_bytes for mapper in mappers)):
                keep_now(mappers, keeper)
                if not keeper.going_on:
                    return
        for mapper in mappers:
            mapper.check()


def keep_now(mappers: "Sequence[Mapper]", keeper: Keeper) -> None:
    """Store what was mapped since the last call, after a check that map() changed no state."""
    mapped = [mapper.take_mapped() for mapper in mappers]
    for mapper in mappers:
        mapper.check(now=True)
    keeper.keep(mapped)


class Mapper:
    """Calls map() of one analysis and adds its pairs to `runs`, in chunks of whole frames."""

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
        self._steps = array("q")  # mapped since the last `take_mapped`
        self._first = 0  # row of the first frame since then
        self._pairs_before = 0
        self._analysis = analysis
        self._state = vars(analysis)
        self._rank = rank
        self._frames = frames
        self._bind = bind
        self._combines = analysis.defines("combine")
        self._guard: Snapshot | None = None
        self._frame: Frame | None = None  # the last frame
        self._foreseen = False
        self._unchanged: int | None = None  # number of the last frame whose check found no change
        self._emission = Emission(Stamps()) if self._combines else self._new_emission(analysis)

    def _new_emission(self, analysis: Analysis) -> Emission:
        if analysis.then is not None:
            return Emission(self.stamps)
        kind = TableEmission if analysis.yields_rows() else RowEmission
        return kind(self.stamps, self._frames)

    def begin(self, universe: "Universe | None") -> None:
        """Record the state of the analysis and its Universe after setup()."""
        try:
            self._guard = Snapshot(self._analysis, universe)
        except AnalysisError as error:
            raise failure(self._analysis, "map", error, self._rank) from None

    def check(self, now: bool = False) -> None:
        """Raise an error if map() changed the state; without `now`, check only when a check is due."""
        guard, frame = self._guard, self._frame
        if guard is None or frame is None or not (now or guard.due):
            return
        change = guard.change()
        if change is not None:
            raise failure(self._analysis, "map", change, self._rank, at_frame(frame, self._unchanged)) from None
        self._unchanged = frame.number

    def foresee(self, done: int) -> None:
        """Warn once if, by the size after `done` frames, a table of rows or the series of a key will not fit."""
        memory, mapped = self.runs.memory, max(done, len(self.stamps))
        if self._foreseen or self._rank:
            return
        ratio, limit = len(self._frames) / mapped, memory.table if self._emission.tabled else memory.limit
        sizes = self.runs.sizes()
        largest = int(sizes.sum() if self._emission.tabled else sizes.max())
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
                "map() yields some {} for one key, or a few, {} in all frames, for one rank to hold at reduce(), where "
                "pairs may take {}: yield a himach.Row a frame, fold values in combine(), divide the key into finer "
                "ones, let pairs take more memory"
            )
        memory.warn(f"{self._analysis.label()}: {text.format(*figures)}, or select fewer frames")

    def bind_frame(self, raw: RawFrame, step: int) -> Frame:
        """Return the frame for `map()`, after the transformations that setup() added."""
        try:
            return self._bind(raw, step)
        except RAISED as error:
            raise self.binding_error(raw, step, error) from error

    def binding_error(self, raw: RawFrame, step: int, error: BaseException) -> HimachError:
        """Return the error for a frame that could not be bound."""
        if isinstance(error, TrajectoryError):
            return TrajectoryError(str(error))
        frame = Frame(raw.number, step, raw.time, raw.positions, raw.box, raw.velocities, raw.forces, None)
        return failure(self._analysis, "setup", error, self._rank, at_frame(frame), part="'s transformations")

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
            raise failure(analysis, "map", error, self._rank, at_frame(frame), items=items) from error
        finally:
            state[MAPPING] = False
        if self._keeps:
            self._steps.append(frame.step)
            self.fresh_bytes += FRAME_BYTES
        if emission.nbytes >= CHUNK_BYTES:
            self.flush(last=False)

    def flush(self, last: bool = True) -> None:
        """Add the pairs of finished frames to `runs`; unless `last`, hold back bit fields that have room."""
        self.pairs += self._emission.pairs
        blocks = self._combine() if self._combines else self._emission.close_chunk(self.runs.shards, last)
        stored = self.runs.put(blocks)
        if self._keeps:
            self._fresh += stored
            self.fresh_bytes += sum(block.nbytes for block in stored)

    def adopt(self, table: FrameTable, pairs: int, blocks: Sequence[Block]) -> None:
        """Add `pairs` pairs of an earlier run; the rows of their frames, `table`, start at `len(self.stamps)`."""
        self.stamps.append(table)
        self.runs.put(blocks)
        self.pairs += pairs
        self._first, self._pairs_before = len(self.stamps), self.pairs

    def take_mapped(self) -> Mapped:
        """Return all that map() yielded since the last call."""
        self.flush()
        self.stamps.seal()
        pairs = self.pairs - self._pairs_before
        mapped = Mapped(self._fresh, self._first, len(self.stamps), pairs, self.stamps, self._steps)
        self._fresh, self._steps, self.fresh_bytes = [], array("q"), 0
        self._first, self._pairs_before = len(self.stamps), self.pairs
        return mapped

    def _combine(self) -> list[Block]:
        """Return the chunk with one combined value per key."""
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
                raise failure(self._analysis, "combine", error, self._rank, for_key(key)) from error
        return folded.close_chunk(self.runs.shards)
