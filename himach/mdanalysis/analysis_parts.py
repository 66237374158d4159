"""Parts of an analysis of MDAnalysis, computed by ranks: `compute()`.

MDAnalysis splits the frames of an analysis into parts (``np.array_split``) and joins their results. Which rank computes
a part makes no difference, so results are those of MDAnalysis's own backends with as many parts.

`run()` runs several analyses in one pass over cached frames; `Backend` is for their own run().
"""

import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import numpy.typing as npt
from MDAnalysis.analysis.backends import BackendBase
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import Results
from MDAnalysis.coordinates.timestep import Timestep
from MDAnalysis.core.groups import AtomGroup, GroupBase

from himach.errors import HimachError, UsageError, checks_arguments
from himach.io.universe.gather import mean_row
from himach.mdanalysis.sending import pack, strip_results, unpack
from himach.ranks.collective import Meeting, is_everywhere
from himach.ranks.communicator import World
from himach.ranks.last_words import frame_cell
from himach.ranks.process_exit import promised_rank, promised_ranks, under_launcher
from himach.ranks.progress import Progress, is_watched
from himach.ranks.quiet import quiet_ranks
from himach.ranks.ranks import Ranks
from himach.runner.commands import check_ranks, on_ranks

_positions = AtomGroup.positions
_center = GroupBase.center
#: Vectors of a Timestep of MDAnalysis.
VECTORS = ("positions", "velocities", "forces")
#: Outcome of a rank: the pickled exception of its analysis, and its traceback; results by task and part.
RankParts = tuple[tuple[bytes | None, str] | None, list[tuple[tuple[int, int], bytes]]]


@dataclass
class AnalysisPart:
    """Results of an analysis in some frames, as MDAnalysis expects them from a backend."""

    frames: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    results: Results


def parts_by_default(ranks: int | Ranks | None) -> int:
    """Return the default number of parts: one for each rank."""
    check_ranks(ranks)
    if under_launcher():
        return promised_ranks()
    return ranks.size if isinstance(ranks, Ranks) else ranks or 1


def compute(
    tasks: Sequence[tuple[Any, Sequence[Any]]], ranks: int | Ranks | None, cache: str, progress: bool | None = None
) -> list[list[Any]]:
    """Compute parts of analyses on ranks (collective where a launcher started several).

    `tasks`: each an analysis or any function, and its parts: of an analysis rows of (index, frame), of a function its
    arguments. Analyses of one Universe with equal parts share the pass over frames.
    """
    quiet = not (is_watched() if progress is None else progress)
    work = _Work(pack([task for task, _ in tasks], cache), [parts for _, parts in tasks], quiet)
    if ranks is None or under_launcher():
        with quiet_ranks(promised_rank()):
            outcomes = on_ranks(work)
    else:
        outcomes = on_ranks(work, ranks)
    for failure, _ in outcomes:
        if failure is not None:
            _raise(*failure)
    results = {place: content for _, parts in outcomes for place, content in parts}
    return [[unpack(results[index, number]) for number in range(len(parts))] for index, (_, parts) in enumerate(tasks)]


@dataclass(frozen=True)
class _Work:
    """Parts as work for ranks; every rank returns the results of all."""

    tasks: bytes
    parts: Sequence[Sequence[Any]]
    quiet: bool

    def __call__(self, world: World) -> list[RankParts]:
        comm, meeting = world.comm, Meeting(world.comm)
        results: list[tuple[tuple[int, int], bytes]] = []
        failure: tuple[bytes | None, str] | None = None
        calls = sum(len(part) if isinstance(part, np.ndarray) else 1 for parts in self.parts for part in parts)
        # Under mpiexec ranks are quiet already.
        with quiet_ranks(comm.rank), Progress(comm, calls, sys.stderr, comm.bcast(self.quiet)) as display:
            show, count = meeting.watched(display), itertools.count(1)

            def all_parts() -> None:
                nonlocal failure
                try:
                    for number in range(comm.rank, max(map(len, self.parts), default=0), comm.size):
                        with cached_groups():
                            results.extend(self._part(number, lambda: show(next(count))))
                    display.finish(meeting.poll)
                except Exception as error:
                    if not isinstance(error, HimachError) and type(error).__name__ != "_Stopped":  # by other ranks
                        failure = _portable(error, f"on rank {comm.rank} of {comm.size}")
                    raise

            try:
                meeting.together(all_parts)
            except Exception as error:
                display.close()
                if comm.size > 1 and not is_everywhere(error):
                    raise
                outcomes: list[RankParts] = comm.allgather((failure, []))
                if all(failed is None for failed, _ in outcomes):
                    raise
                return outcomes
        all_parts_results: list[RankParts] = comm.allgather((None, results))
        return all_parts_results

    def _part(self, number: int, done: Callable[[], None]) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Compute one part of each task; tasks are unpacked anew, so that earlier parts leave no trace."""
        tasks = unpack(self.tasks)
        analyses = [_find_analysis(task) for task in tasks]
        groups: dict[Any, list[int]] = {}  # analyses that share the pass over frames
        for index, analysis in enumerate(analyses):
            if number < len(self.parts[index]):
                is_standard = type(analysis)._compute is AnalysisBase._compute if analysis is not None else False
                part = self.parts[index][number]
                key = (id(analysis._trajectory), part.tobytes()) if analysis is not None and is_standard else index
                groups.setdefault(key, []).append(index)
        for key, indices in groups.items():
            part = self.parts[indices[0]][number]
            if isinstance(key, tuple):
                _run_together([analyses[index] for index in indices], part, done)
            else:
                task, analysis = tasks[indices[0]], analyses[indices[0]]
                result = (task._compute if task is analysis else task)(part)
                for _ in part if analysis is not None else (part,):
                    done()
            for index in indices:
                analysis = analyses[index]
                if analysis is not None:
                    result = AnalysisPart(analysis.frames, analysis.times, strip_results(analysis.results))
                yield (index, number), cloudpickle.dumps(result)
        for analysis in analyses:
            if analysis is not None:
                analysis._trajectory.close()  # now, not at garbage collection: keeps frames that were read


def _find_analysis(task: Any) -> Any:
    """Return the analysis that a task is, or whose method it is, as MDAnalysis passes it to backends; else None."""
    analysis = task if isinstance(task, AnalysisBase) else getattr(getattr(task, "func", None), "__self__", None)
    return analysis if isinstance(analysis, AnalysisBase) else None


def _restore(ts: Timestep, saved: Timestep) -> None:
    """Undo the changes of an analysis to a Timestep, by a copy of it as it was read."""
    for name in VECTORS:
        has_vectors = getattr(saved, f"has_{name}")
        setattr(ts, f"has_{name}", has_vectors)
        if has_vectors:
            setattr(ts, name, getattr(saved, name))
    ts.dimensions, ts.frame = saved.dimensions, saved.frame
    ts.data.clear()
    ts.data.update(saved.data)


def _run_together(analyses: Sequence[Any], frames: npt.NDArray[np.int64], done: Callable[[], None]) -> None:
    """Run analyses over each frame, as AnalysisBase._compute runs one; each gets the frame as it was read."""
    for analysis in analyses:
        analysis._prepare_sliced_trajectory(slicer=frames[:, 1])
        analysis._prepare()
    for index, ts in enumerate(analyses[0]._sliced_trajectory if len(frames) else ()):
        saved = ts.copy() if len(analyses) > 1 else None
        frame_cell()[0] = ts.frame + 1
        for order, analysis in enumerate(analyses):
            if saved is not None and order:
                _restore(ts, saved)
            analysis._frame_index, analysis._ts = index, ts
            analysis.frames[index], analysis.times[index] = ts.frame, ts.time
            analysis._single_frame()
            done()


def _portable(error: Exception, where: str) -> tuple[bytes | None, str]:
    """Return an exception pickled, None if that fails, and its text."""
    text = f"{where}:\n{''.join(traceback.format_exception(error))}"
    try:
        content = cloudpickle.dumps(error)
        unpack(content)
    except Exception:
        return None, text
    return content, text


def _raise(content: bytes | None, text: str) -> None:
    """Raise the exception of an analysis on a rank."""
    if content is None:
        raise HimachError(f"an analysis failed {text}")
    error = unpack(content)
    error.add_note(text)
    raise error


Analyses = TypeVar("Analyses", AnalysisBase, Sequence[AnalysisBase])


@checks_arguments
def run(
    analysis: "Analyses",
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    ranks: int | Ranks | None = None,
    cache: str | os.PathLike[str] = "auto",
    *,
    frames: Iterable[int] | None = None,
    progress: bool | None = None,
) -> "Analyses":
    """Run analyses of MDAnalysis on ranks; their results are those of ``analysis.run()`` with as many parts.

    Parameters
    ----------
    analysis
        An instance, or several, which then share one pass over the frames where they share a Universe.
    start, stop, step
        Choice of frames, as of ``analysis.run()``.
    ranks
        None: this process alone, or, where mpiexec or srun started several, this process as one of them. A number:
        that many ranks are started on this machine. `himach.Ranks`: the run takes these, which are ready.
    cache
        As of `himach.run`: ``"auto"``, ``"off"`` or a directory.
    frames
        Frame numbers, in place of `start`, `stop` and `step`.
    progress
        Whether to show progress on standard error; None shows it in a terminal or notebook only.

    Returns
    -------
    AnalysisBase or list of these
        What was given, with its results.

    Raises
    ------
    ValueError
        MDAnalysis refuses a choice of frames.
    UsageError
        Something else was given, or an analysis that cannot be taken apart, or the wrong number of ranks.
    """
    if isinstance(analysis, type):
        raise UsageError(f"{analysis.__name__} is a class; give an instance, as {analysis.__name__}(universe)")
    analyses = [analysis] if isinstance(analysis, AnalysisBase) else list(analysis)
    if not analyses:
        raise UsageError("there is no analysis to run")
    for member in analyses:
        if not isinstance(member, AnalysisBase):
            raise UsageError(f"{member!r} is no analysis of MDAnalysis; himach.run() takes himach's own")
        if not member._analysis_algorithm_is_parallelizable:
            name = type(member).__name__
            raise UsageError(
                f"{name} cannot be divided among ranks, as MDAnalysis says of it. Where its frames do not depend on "
                f"each other, himach.run(himach.mdanalysis.adapted({name})(name=value, ...), universe) runs it, with "
                "selections in place of groups; else call its own run() over cached frames (himach://NAME)"
            )
    n_parts = parts_by_default(ranks)
    numbers = None if frames is None else list(frames)
    slicing: dict[str, Any] = {"start": start, "stop": stop, "step": step, "frames": numbers}
    backend = Backend(ranks)
    for member in analyses:
        member._configure_backend(backend, None, unsupported_backend=True)  # raises if MDAnalysis refuses
    tasks = [(member, member._setup_computation_groups(n_parts, **slicing)) for member in analyses]
    parts_of_tasks = compute(tasks, ranks, os.fspath(cache), progress)
    for (member, groups), parts in zip(tasks, parts_of_tasks, strict=True):
        if step is not None and step < 0:  # MDAnalysis counts no frames if the slice ends before the first
            slicing = {"frames": np.concatenate(groups)[:, 1]}
        member.run(**slicing, n_parts=len(parts), backend=_Computed(parts), unsupported_backend=True)
    return analysis


class _Computed(BackendBase):  # type: ignore[misc]
    """Returns parts that were computed before."""

    def __init__(self, parts: list[AnalysisPart]) -> None:
        self._parts = parts
        super().__init__(n_workers=len(parts))

    def apply(self, func: Callable[[Any], Any], computations: Sequence[Any]) -> list[AnalysisPart]:
        """Return the parts."""
        assert len(computations) == len(self._parts)
        return self._parts


class Backend(BackendBase):  # type: ignore[misc]
    """Computes the parts of an analysis on ranks, over cached frames.

    Parameters
    ----------
    ranks
        Ranks of this machine to start, or `himach.Ranks`. None: this process alone, or, where mpiexec or
        srun started several, this process as one of them: each then calls the same ``run()``, and has all results.
    cache
        As of `himach.run`.
    progress
        Whether to show progress on standard error; None shows it in a terminal or notebook only.

    Attributes
    ----------
    n_workers
        Number of ranks.

    Examples
    --------
    >>> RMSD(u).run(backend=himach.mdanalysis.Backend(8), unsupported_backend=True)  # doctest: +SKIP
    """

    def __init__(self, ranks: int | Ranks | None = None, cache: str = "auto", progress: bool | None = None) -> None:
        self._ranks = ranks
        self._cache = cache
        self._progress = progress
        super().__init__(n_workers=parts_by_default(ranks))

    def apply(self, func: Callable[[Any], Any], computations: Sequence[Any]) -> list[Any]:
        """Return what `func` gives for each of the computations; of an analysis, its frames, times and results."""
        (parts,) = compute([(func, list(computations))], self._ranks, self._cache, self._progress)
        return parts


def _quick_positions(group: Any) -> Any:
    positions = group.universe.trajectory.ts.positions
    return positions.take(group.ix, axis=0) if type(positions) is np.ndarray else positions[group.ix]


def _quick_center(
    group: Any, weights: Any, wrap: bool = False, unwrap: bool = False, compound: str = "group", **others: Any
) -> Any:
    if weights is None and compound == "group" and not (wrap or unwrap or others):
        atoms = group.atoms
        if (center := mean_row(atoms.universe.trajectory.ts.positions, atoms.ix)) is not None:
            return center
    return _center(group, weights, wrap=wrap, unwrap=unwrap, compound=compound, **others)


@contextmanager
def cached_groups() -> Iterator[None]:
    """Use himach's loops for groups of atoms in this process during the context: the same to the last bit.

    MDAnalysis's, by numpy's indexing and means over three columns, take ten times as long as reading the frame.
    """
    if AtomGroup.positions is not _positions or GroupBase.center is not _center:  # replaced by others, or already by us
        yield
        return
    AtomGroup.positions = property(_quick_positions, _positions.fset, doc=_positions.__doc__)
    GroupBase.center = _quick_center
    try:
        yield
    finally:
        AtomGroup.positions, GroupBase.center = _positions, _center
