"""`run()`: MDAnalysis's analyses over a trajectory, on ranks, over cached frames, several in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from MDAnalysis.analysis.backends import BackendBase
from MDAnalysis.analysis.base import AnalysisBase

from himach.errors import UsageError, knowing_arguments
from himach.launch.ranks import Ranks
from himach.mdanalysis.backend import Backend
from himach.mdanalysis.parts import AnalysisPart, compute, parts_by_default

__all__ = ["run"]

One = TypeVar("One", AnalysisBase, Sequence[AnalysisBase])


@knowing_arguments
def run(
    analysis: One,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    ranks: int | Ranks | None = None,
    cache: str | os.PathLike[str] = "auto",
    *,
    frames: Iterable[int] | None = None,
    progress: bool | None = None,
) -> One:
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
    for one in analyses:
        if not isinstance(one, AnalysisBase):
            raise UsageError(f"{one!r} is no analysis of MDAnalysis; himach.run() takes himach's own")
        if not one._analysis_algorithm_is_parallelizable:
            name = type(one).__name__
            raise UsageError(
                f"{name} cannot be divided among ranks, as MDAnalysis says of it. Where its frames do not depend on "
                f"each other, himach.run(himach.mdanalysis.adapted({name})(...), universe) runs it, with the arguments "
                "of its constructor; else call its own run(), whose Universe may read cached frames (himach://NAME)"
            )
    n_parts = parts_by_default(ranks)
    numbers = None if frames is None else list(frames)
    chosen: dict[str, Any] = {"start": start, "stop": stop, "step": step, "frames": numbers}
    backend = Backend(ranks)
    for one in analyses:
        one._configure_backend(backend, None, unsupported_backend=True)  # what MDAnalysis refuses
    tasks = [(one, one._setup_computation_groups(n_parts, **chosen)) for one in analyses]
    found = compute(tasks, ranks, os.fspath(cache), progress)
    for (one, groups), parts in zip(tasks, found, strict=True):
        if step is not None and step < 0:  # MDAnalysis counts no frames where their slice ends before the first
            chosen = {"frames": np.concatenate(groups)[:, 1]}
        one.run(**chosen, n_parts=len(parts), backend=_Computed(parts), unsupported_backend=True)
    return analysis


class _Computed(BackendBase):  # type: ignore[misc]
    """Gives parts that were computed before."""

    def __init__(self, parts: list[AnalysisPart]) -> None:
        self._parts = parts
        super().__init__(n_workers=len(parts))

    def apply(self, func: Callable[[Any], Any], computations: Sequence[Any]) -> list[AnalysisPart]:
        """Return the parts."""
        assert len(computations) == len(self._parts)
        return self._parts
