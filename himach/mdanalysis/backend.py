"""`Backend`: MDAnalysis's analyses on ranks, for ``analysis.run(backend=Backend(8), unsupported_backend=True)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from MDAnalysis.analysis.backends import BackendBase

from himach.launch.ranks import Ranks
from himach.mdanalysis.parts import compute, parts_by_default

__all__ = ["Backend"]


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
        (found,) = compute([(func, list(computations))], self._ranks, self._cache, self._progress)
        return found
