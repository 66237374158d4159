"""Positions and centers of MDAnalysis's groups of atoms, sooner: `quick_groups()`, for parts that himach computes.

MDAnalysis gathers the rows of a group by numpy's indexing, and adds them up by numpy's mean over three columns; both
take ten times as long as reading the frame. The loops here do the same, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from MDAnalysis.core.groups import AtomGroup, GroupBase

from himach.io.universe.gather import mean_row, rows

__all__ = ["quick_groups"]

_positions = AtomGroup.positions
_center = GroupBase.center


def _quick_positions(group: Any) -> Any:
    return rows(group.universe.trajectory.ts.positions, group.ix)


def _quick_center(
    group: Any, weights: Any, wrap: bool = False, unwrap: bool = False, compound: str = "group", **others: Any
) -> Any:
    if weights is None and compound == "group" and not (wrap or unwrap or others):
        atoms = group.atoms
        found = mean_row(atoms.universe.trajectory.ts.positions, atoms.ix)
        if found is not None:
            return found
    return _center(group, weights, wrap=wrap, unwrap=unwrap, compound=compound, **others)


@contextmanager
def quick_groups() -> Iterator[None]:
    """Let groups of atoms use himach's loops in this process while the context lasts."""
    if AtomGroup.positions is not _positions or GroupBase.center is not _center:  # somebody else's, or ours already
        yield
        return
    AtomGroup.positions = property(_quick_positions, _positions.fset, doc=_positions.__doc__)
    if _adds_in_turn():
        GroupBase.center = _quick_center
    try:
        yield
    finally:
        AtomGroup.positions, GroupBase.center = _positions, _center


@cache
def _adds_in_turn() -> bool:
    """Tell whether this numpy adds up rows one after the other, as it has ever done; so that the bits are the same."""
    random = np.random.default_rng(2026)
    vectors = (random.normal(size=(3001, 3)) * 10.0 ** random.integers(-6, 6, (3001, 3))).astype(np.float32)
    for some in (vectors, vectors[:7], np.full((2, 3), -0.0, dtype=np.float32)):
        found = mean_row(some, np.arange(len(some)))
        if found is None or found.tobytes() != some.astype(np.float64).mean(axis=0).tobytes():
            return False
    return True
