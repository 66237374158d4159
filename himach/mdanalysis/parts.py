"""Parts of an analysis of MDAnalysis, computed by ranks: `compute()`.

MDAnalysis splits the frames of an analysis into parts (``np.array_split``), of which each has its results, and joins
these. Which part a rank has makes no difference, so results are those of MDAnalysis's own backends with as many parts.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import numpy.typing as npt
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import Results

from himach.errors import HimachError, as_himach
from himach.launch.children import cannot_fork, in_children
from himach.launch.ranks import Ranks
from himach.mdanalysis.groups import quick_groups
from himach.mdanalysis.results import lean
from himach.mdanalysis.sending import pack, unpack
from himach.parallel.collective import Meeting, is_everywhere
from himach.parallel.communicator import alone
from himach.parallel.environment import promised_rank, promised_ranks, under_launcher
from himach.parallel.last_words import frame_cell
from himach.parallel.progress import Progress, is_watched
from himach.parallel.quiet import quiet_ranks
from himach.runner.run import check_ranks, on_ranks

if TYPE_CHECKING:
    from MDAnalysis.coordinates.timestep import Timestep

    from himach.parallel.communicator import World

__all__ = ["AnalysisPart", "compute", "parts_by_default"]

#: Vectors of a time step of MDAnalysis.
VECTORS = ("positions", "velocities", "forces")

IndexedFrames = npt.NDArray[np.int64]


@dataclass
class AnalysisPart:
    """What an analysis found in some frames, as MDAnalysis asks for it of a backend."""

    frames: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    results: Results


def parts_by_default(ranks: int | Ranks | None) -> int:
    """Return how many parts there are unless somebody says so: one for each rank.

    Raises
    ------
    UsageError
        That is not the number of ranks that a launcher started; or there are none.
    """
    check_ranks(ranks)
    if under_launcher():
        return promised_ranks()
    return ranks.size if isinstance(ranks, Ranks) else ranks or 1


def compute(
    tasks: Sequence[tuple[Any, Sequence[Any]]],
    ranks: int | Ranks | None,
    cache: str,
    progress: bool | None = None,
) -> list[list[Any]]:
    """Compute parts of analyses on ranks (collective where a launcher started several).

    Parameters
    ----------
    tasks
        Each an analysis, or any function, and its parts: of an analysis (index, frame) as rows of an array; of a
        function its arguments. Analyses of one Universe with equal parts are taken over the frames together.
    ranks
        Ranks of this machine to start, or `himach.Ranks`; None: this process, or those that a launcher started.
    cache
        As of `himach.run`.
    progress
        Whether to show it; None: in a terminal or notebook.

    Returns
    -------
    list
        For each task, what came of its parts; of an analysis each a `AnalysisPart`.

    Raises
    ------
    Exception
        What an analysis raised, with a note of where.
    HimachError
        Ranks could not be started, or one died.
    """
    quiet = not (is_watched() if progress is None else progress)
    work = _Work(pack([task for task, _ in tasks], cache), [parts for _, parts in tasks], quiet)
    if ranks is None or under_launcher():
        with quiet_ranks(promised_rank()):
            told = on_ranks(work)
    elif isinstance(ranks, int) and not cannot_fork():
        told = work.in_children(ranks)
    else:
        told = on_ranks(work, ranks)
    failed = next((failure for failure, _ in told if failure is not None), None)
    if failed is not None:
        _raise(*failed)
    found = {place: content for _, parts in told for place, content in parts}
    return [[unpack(found[index, number]) for number in range(len(parts))] for index, (_, parts) in enumerate(tasks)]


#: Of a rank: the exception that its analysis raised, pickled, and its traceback; results by task and part.
Told = list[tuple[tuple[bytes | None, str] | None, list[tuple[tuple[int, int], bytes]]]]


@dataclass(frozen=True)
class _Work:
    """Parts as work for ranks; every rank returns what all found."""

    tasks: bytes
    parts: Sequence[Sequence[Any]]
    quiet: bool

    def __call__(self, world: World) -> Told:
        comm = world.comm
        meeting = Meeting(comm)
        found: list[tuple[tuple[int, int], bytes]] = []
        failure: tuple[bytes | None, str] | None = None
        # Under mpiexec they are quiet already.
        with quiet_ranks(comm.rank), Progress(comm, self._total(), sys.stderr, comm.bcast(self.quiet)) as display:
            done = _Count(meeting.watched(display))

            def all_parts() -> None:
                nonlocal failure
                try:
                    for number in self._mine(comm.rank, comm.size):
                        found.extend(self._part(number, done))
                    display.finish(meeting.look)
                except Exception as error:
                    if not isinstance(error, HimachError) and not _is_stop(error):
                        failure = _told(error, f"on rank {comm.rank} of {comm.size}")
                    raise

            try:
                meeting.together(all_parts)
            except Exception as error:
                display.close()
                if comm.size > 1 and not is_everywhere(error):
                    raise
                told: Told = comm.allgather((failure, []))
                if all(one is None for one, _ in told):
                    raise
                return told
        everything: Told = comm.allgather((None, found))
        return everything

    def in_children(self, size: int) -> Told:
        """Do it in children of this process, which come from it as it is."""
        told: Told = []

        def one(rank: int, count: Callable[[int], None]) -> bytes:
            done = _Count(count)
            try:
                with quiet_ranks(rank):
                    found = [each for number in self._mine(rank, size) for each in self._part(number, done)]
                return pickle.dumps((None, found))
            except BaseException as error:
                shown = error if isinstance(error, Exception) else as_himach(error)
                return pickle.dumps((_told(shown, f"on rank {rank} of {size}"), []))

        with (
            Progress(alone().comm, self._total(), sys.stderr, self.quiet) as display,
            contextlib.closing(in_children(size, one, display)) as children,
        ):
            for _, content in children:
                told.append(pickle.loads(content))
                if told[-1][0] is not None:  # the others need not end
                    display.close()
                    break
        return told

    def _total(self) -> int:
        """Return how often an analysis or function is called."""
        return sum(len(part) if isinstance(part, np.ndarray) else 1 for parts in self.parts for part in parts)

    def _mine(self, rank: int, size: int) -> Iterator[int]:
        """Give the numbers of the parts that a rank computes."""
        return iter(range(rank, max(map(len, self.parts), default=0), size))

    def _part(self, number: int, done: Callable[[], None]) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Compute one part of each task; what was computed of others before has left nothing."""
        with quick_groups():
            yield from self._computed(unpack(self.tasks), number, done)

    def _computed(
        self, tasks: Sequence[Any], number: int, done: Callable[[], None]
    ) -> Iterator[tuple[tuple[int, int], bytes]]:
        waiting = [index for index, parts in enumerate(self.parts) if number < len(parts)]
        while waiting:
            index = waiting[0]
            part = self.parts[index][number]
            if not isinstance(tasks[index], AnalysisBase) and _analysis_of(tasks[index]) is None:
                yield (index, number), cloudpickle.dumps(tasks[index](part))
                done()
                waiting.remove(index)
                continue
            group = [other for other in waiting if other == index or self._fits(tasks, index, other, number)]
            results = _take([tasks[other] for other in group], part, done)
            for other, result in zip(group, results, strict=True):
                yield (other, number), cloudpickle.dumps(result)
                waiting.remove(other)
        for task in tasks:
            if isinstance(analysis := _analysis_of(task) or task, AnalysisBase):
                analysis._trajectory.close()  # now, and not when memory is collected, frames that were read are kept

    def _fits(self, tasks: Sequence[Any], one: int, other: int, number: int) -> bool:
        """Tell whether two analyses can be taken over the frames together."""
        first, second = tasks[one], tasks[other]
        return (
            all(
                isinstance(task, AnalysisBase) and type(task)._compute is AnalysisBase._compute
                for task in (first, second)
            )
            and first._trajectory is second._trajectory
            and np.array_equal(self.parts[one][number], self.parts[other][number])
        )


class _Count:
    """Counts the frames of this rank."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self._done = 0
        self._show = show

    def __call__(self) -> None:
        self._done += 1
        self._show(self._done)


def _analysis_of(task: Any) -> AnalysisBase | None:
    """Return the analysis whose method a function of MDAnalysis's is, as it gives it to backends."""
    analysis = getattr(getattr(task, "func", None), "__self__", None)
    return analysis if isinstance(analysis, AnalysisBase) else None


def _take(tasks: Sequence[Any], frames: IndexedFrames, done: Callable[[], None]) -> list[AnalysisPart]:
    """Take analyses of one trajectory over some frames."""
    analyses = [_analysis_of(task) or task for task in tasks]
    if len(tasks) > 1:
        _take_together(analyses, frames, done)
    else:
        (analysis,) = analyses
        _count(analysis, done)
        (analysis._compute if tasks[0] is analysis else tasks[0])(frames)
    return [AnalysisPart(analysis.frames, analysis.times, lean(analysis.results)) for analysis in analyses]


def _count(analysis: AnalysisBase, done: Callable[[], None]) -> None:
    """Have an analysis call `done` after each frame."""
    single_frame = analysis._single_frame

    def counted() -> None:
        frame_cell()[0] = analysis._ts.frame + 1
        single_frame()
        done()

    analysis._single_frame = counted


class _AsRead:
    """A time step of MDAnalysis as it was read, for the next analysis."""

    def __init__(self, ts: Timestep) -> None:
        self._ts = ts
        self._fields = {name: getattr(ts, name).copy() for name in VECTORS if getattr(ts, f"has_{name}")}
        self._dimensions = None if ts.dimensions is None else ts.dimensions.copy()
        self._frame, self._time, self._data = ts.frame, ts.time, dict(ts.data)

    def restore(self) -> None:
        """Undo what an analysis has changed."""
        ts = self._ts
        for name in VECTORS:
            if name in self._fields:
                setattr(ts, name, self._fields[name])
            else:
                setattr(ts, f"has_{name}", False)
        ts.dimensions = self._dimensions
        ts.frame, ts.time = self._frame, self._time
        ts.data.clear()
        ts.data.update(self._data)


def _take_together(analyses: Sequence[AnalysisBase], frames: IndexedFrames, done: Callable[[], None]) -> None:
    """Take several analyses over each frame, as AnalysisBase._compute takes one; each finds it as it was read."""
    for analysis in analyses:
        analysis._prepare_sliced_trajectory(slicer=frames[:, 1])
        analysis._prepare()
    if not len(frames):
        return
    for index, ts in enumerate(analyses[0]._sliced_trajectory):
        as_read = _AsRead(ts)
        frame_cell()[0] = ts.frame + 1
        for place, analysis in enumerate(analyses):
            if place:
                as_read.restore()
            analysis._frame_index = index
            analysis._ts = ts
            analysis.frames[index] = ts.frame
            analysis.times[index] = ts.time
            analysis._single_frame()
            done()


def _is_stop(error: Exception) -> bool:
    """Tell whether another rank's failure stopped this one."""
    return type(error).__name__ == "_Stopped"


def _told(error: Exception, where: str) -> tuple[bytes | None, str]:
    """Return an exception as it travels, and what it says where it cannot."""
    text = f"{where}:\n{''.join(traceback.format_exception(error))}"
    try:
        content = cloudpickle.dumps(error)
        unpack(content)
    except Exception:
        return None, text
    return content, text


def _raise(content: bytes | None, text: str) -> None:
    """Raise what an analysis raised on a rank."""
    if content is None:
        raise HimachError(f"an analysis failed {text}")
    error = unpack(content)
    error.add_note(text)
    raise error
