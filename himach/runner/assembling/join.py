"""Slices of one frame become the frame, if they cover its atoms once. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.slices.held import Slice
from himach.io.slices.scatter import own, scatter

__all__ = ["Joiner", "NotWholeError"]

FIELDS = ("positions", "velocities", "forces")

Vectors = npt.NDArray[np.float32]


class NotWholeError(Exception):
    """The slices of a frame do not make it: why, in words."""


class Joiner:
    """Joins slices to frames, in arrays that it uses again and again."""

    def __init__(self, n_atoms: int) -> None:
        self._n_atoms = n_atoms
        self._owners = np.empty(n_atoms, dtype=np.int32)
        self._arrays: dict[str, Vectors] = {}

    def join(self, slices: Sequence[Slice]) -> RawFrame:
        """Return the frame that slices make, until the next; the same slice may be there twice.

        Raises
        ------
        NotWholeError
            Some atoms are in no slice or in two, or the slices are not of one moment.
        """
        parts = _distinct(slices)
        _check_alike(parts)
        self._check_cover(parts)
        first = parts[0].frame
        vectors = {name: self._whole(name, parts) for name in FIELDS}
        positions = vectors["positions"]
        assert positions is not None
        return RawFrame(first.number, first.time, positions, first.box, vectors["velocities"], vectors["forces"])

    def _whole(self, name: str, parts: Sequence[Slice]) -> Vectors | None:
        """Return the vectors of all atoms; None if slices have none."""
        if getattr(parts[0].frame, name) is None:
            return None
        if name not in self._arrays:
            self._arrays[name] = np.empty((self._n_atoms, 3), np.float32)
        out = self._arrays[name]
        for part in parts:
            scatter(out, part.ids, getattr(part.frame, name))
        return out

    def _check_cover(self, parts: Sequence[Slice]) -> None:
        """Check that every atom is in just one slice."""
        self._owners[:] = -1
        for index, part in enumerate(parts):
            place = own(self._owners, part.ids, index)
            if place >= 0:
                atom = int(part.ids[place])
                if atom >= self._n_atoms:
                    raise NotWholeError(f"rank {part.rank} has pushed atom {atom} of {self._n_atoms}")
                other = parts[int(self._owners[atom])].rank
                raise NotWholeError(f"atom {atom} is in the slices of rank {other} and rank {part.rank}")
        if sum(len(part.ids) for part in parts) < self._n_atoms:
            missing = np.flatnonzero(self._owners < 0)
            raise NotWholeError(f"{len(missing)} atoms are in no slice, atom {int(missing[0])} first")


def _distinct(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices, of each rank one; those of one rank must be the same."""
    of_rank: dict[int, Slice] = {}
    for one in slices:
        other = of_rank.setdefault(one.rank, one)
        if other is not one and not _same(one, other):
            raise NotWholeError(f"rank {one.rank} has pushed two slices that differ")
    return [of_rank[rank] for rank in sorted(of_rank)]


def _same(one: Slice, other: Slice) -> bool:
    arrays = [(one.ids, other.ids), (one.frame.box, other.frame.box)]
    arrays += [(getattr(one.frame, name), getattr(other.frame, name)) for name in FIELDS]
    if not _same_time(one, other):
        return False
    return all((a is None) == (b is None) and (a is None or b is None or a.tobytes() == b.tobytes()) for a, b in arrays)


def _same_time(one: Slice, other: Slice) -> bool:
    return np.float64(one.frame.time).tobytes() == np.float64(other.frame.time).tobytes()


def _check_alike(parts: Sequence[Slice]) -> None:
    """Check that time, box and fields are those of the first rank's slice."""
    first = parts[0]
    for part in parts[1:]:
        both = f"rank {first.rank} and rank {part.rank}"
        if not _same_time(part, first):
            raise NotWholeError(f"{both} give it the times {first.frame.time:.15g} and {part.frame.time:.15g} ps")
        boxes = [None if one.frame.box is None else one.frame.box.tobytes() for one in (first, part)]
        if boxes[0] != boxes[1]:
            raise NotWholeError(f"{both} give it boxes that differ")
        for name in ("velocities", "forces"):
            if (getattr(first.frame, name) is None) != (getattr(part.frame, name) is None):
                raise NotWholeError(f"of {both} one gives {name} and one gives none")
