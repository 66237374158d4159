"""Vectors restricted to requested atoms: `RequestedVectors`, and `requested_atoms()`, the mask of what atoms() returns.

An analysis with atoms() gets frames in which only the rows of those atoms are certain to be filled. So its
`frame.positions`, and the positions of its Universe, give these rows and refuse others by an error that names an atom.
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from MDAnalysis import Universe
from numpy.lib.mixins import NDArrayOperatorsMixin

from himach.errors import AnalysisError
from himach.io.universe.gather import gather

Vectors = npt.NDArray[np.float32]
Asked = npt.NDArray[np.bool_]


class RequestedVectors(NDArrayOperatorsMixin):
    """Positions, velocities or forces of all atoms; only the rows that were requested can be read.

    ``vectors[i]``, ``vectors[a:b]``, ``vectors[indices]`` and ``vectors[mask]`` give plain float32 arrays, as an array
    would: views for a number and a slice, copies for indices and masks. ``vectors[indices] = values`` writes. A second
    index goes to the axis. All else needs every atom, and is refused.
    """

    __slots__ = ("refuse", "requested", "vectors")
    __hash__ = None  # type: ignore[assignment]

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, requested: Asked, refuse: Callable[[int | None], NoReturn]) -> None:
        self.requested = requested
        self.refuse = refuse  # raises for an atom that was not requested, or, given None, for what needs all of them
        self.vectors: Vectors = np.empty((0, 3), dtype=np.float32)  # (n_atoms, 3); whoever binds a frame sets it

    @property
    def shape(self) -> tuple[int, int]:
        """(n_atoms, 3)."""
        return (len(self.requested), 3)

    def __len__(self) -> int:
        return len(self.requested)

    def __repr__(self) -> str:
        return f"RequestedVectors({np.count_nonzero(self.requested)} of {len(self.requested)} atoms)"

    def __getitem__(self, key: Any) -> Any:
        if type(key) is np.ndarray and key.dtype == np.int64 and key.ndim == 1 and key.flags.c_contiguous:
            rows = gather(self.vectors, self.requested, key)
            if isinstance(rows, np.ndarray):
                return rows
        self._check(key)
        return self.vectors[key]

    def __setitem__(self, key: Any, values: Any) -> None:
        self._check(key)
        self.vectors[key] = values

    def _check(self, key: Any) -> None:
        """Raise for the first atom of an index that was not requested."""
        rows = key[0] if isinstance(key, tuple) and key else key
        if rows is None or rows is Ellipsis or (isinstance(key, tuple) and len(key) > 2):
            self.refuse(None)
        if not np.all(self.requested[rows]):
            chosen = np.arange(len(self))[rows].ravel()
            self.refuse(int(chosen[~self.requested[chosen]][0]))

    def _refuse_all(self, *args: Any, **keywords: Any) -> NoReturn:
        self.refuse(None)

    __array__ = __array_ufunc__ = __array_function__ = __iter__ = __contains__ = _refuse_all

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(np.ndarray, name):
            self.refuse(None)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def requested_atoms(groups: Any, universe: Universe, label: str) -> Asked:
    """Return the mask of the atoms that an analysis's atoms() requests, bool (n_atoms,)."""
    from MDAnalysis.core.groups import GroupBase, UpdatingAtomGroup

    requested = np.zeros(len(universe.atoms), dtype=bool)
    several = [groups] if isinstance(groups, GroupBase) or not isinstance(groups, Iterable) else list(groups)
    for group in several:
        if not isinstance(group, GroupBase):
            raise AnalysisError(
                f"atoms() of {label} returned {group!r:.40} ({type(group).__name__}); return an AtomGroup of the "
                "universe that it gets, or several in a list"
            )
        if isinstance(group, UpdatingAtomGroup):
            raise AnalysisError(
                f"atoms() of {label} returned a group that updates, so that its atoms change from frame to frame; "
                "return a group of all the atoms among which it selects"
            )
        if group.universe is not universe:
            raise AnalysisError(
                f"atoms() of {label} returned a group of another Universe; select it from the one that it gets"
            )
        requested[group.atoms.ix] = True
    return requested
