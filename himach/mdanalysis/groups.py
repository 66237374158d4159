"""Faster positions and centers of MDAnalysis's groups of atoms: `cached_groups()`, for parts that himach computes.

MDAnalysis gathers the rows of a group by numpy's indexing, and sums them by numpy's mean over three columns; both take
ten times as long as reading the frame. The loops here give the same, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from MDAnalysis.core.groups import AtomGroup, GroupBase

from himach.io.universe.gather import mean_row, rows

_positions = AtomGroup.positions
_center = GroupBase.center


def _quick_positions(group: Any) -> Any:
    return rows(group.universe.trajectory.ts.positions, group.ix)


def _quick_center(
    group: Any, weights: Any, wrap: bool = False, unwrap: bool = False, compound: str = "group", **others: Any
) -> Any:
    if weights is None and compound == "group" and not (wrap or unwrap or others):
        atoms = group.atoms
        center = mean_row(atoms.universe.trajectory.ts.positions, atoms.ix)
        if center is not None:
            return center
    return _center(group, weights, wrap=wrap, unwrap=unwrap, compound=compound, **others)


@contextmanager
def cached_groups() -> Iterator[None]:
    """Use himach's loops for groups of atoms in this process during the context."""
    if AtomGroup.positions is not _positions or GroupBase.center is not _center:  # replaced by others, or already by us
        yield
        return
    AtomGroup.positions = property(_quick_positions, _positions.fset, doc=_positions.__doc__)
    GroupBase.center = _quick_center
    try:
        yield
    finally:
        AtomGroup.positions, GroupBase.center = _positions, _center
