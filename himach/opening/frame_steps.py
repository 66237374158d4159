"""What is done to each frame before anybody sees it: `frame_steps()`, by the options whole, center, wrap and fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from himach.atoms import Atoms
from himach.errors import UsageError
from himach.frame import RawFrame, Vectors
from himach.opening.options import FramesRequest

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe

    from himach.transformations import Transformation

__all__ = ["Part", "frame_steps", "rows", "transform_of"]

Rows = slice | npt.NDArray[np.int64]


@dataclass(slots=True)
class Part(RawFrame):
    """Some atoms of a frame: what transformations take for a timestep."""

    @property
    def frame(self) -> int:
        """Its number."""
        return self.number

    @property
    def dimensions(self) -> Vectors | None:
        """Its box."""
        return self.box

    @property
    def triclinic_dimensions(self) -> Vectors | None:
        """The vectors of its box."""
        from MDAnalysis.lib.mdamath import triclinic_vectors

        return None if self.box is None else triclinic_vectors(self.box)

    def vectors_to_follow(self) -> npt.NDArray[np.float64]:
        """Return the same, float64 (3, 3), in which atoms are followed; raises UsageError if there is no box."""
        vectors = self.triclinic_dimensions
        if vectors is None:
            raise UsageError(f"frame {self.number} has no box by which its atoms could be followed")
        return vectors.astype(np.float64)

    @property
    def has_velocities(self) -> bool:
        """Whether it has them."""
        return self.velocities is not None

    @property
    def has_forces(self) -> bool:
        """Whether it has them."""
        return self.forces is not None


def rows(indices: npt.NDArray[np.int64]) -> Rows:
    """Return what takes rows: neighbours without a copy."""
    begin, n = int(indices[0]) if len(indices) else 0, len(indices)
    return slice(begin, begin + n) if np.array_equal(indices, np.arange(begin, begin + n)) else indices


def frame_steps(
    request: FramesRequest,
    universe: Universe,
    wrap: Literal["atoms", "residues", "molecules"] | None = None,
    whole: bool | None = None,
) -> Iterator[Transformation]:
    """Yield what is done to a frame, in this order; each is made of the present frame as those before leave it.

    Parameters
    ----------
    request
        What is asked.
    universe
        At the first frame.
    wrap
        What is moved into the box.
    whole
        Whether molecules are made whole; None: as is asked.

    Raises
    ------
    UsageError
        If atoms cannot be selected, there are no bonds, or the reference has others.
    """
    from himach.transformations import Center, Fit, Whole, Wrap

    if request.whole if whole is None else whole:
        yield Whole(universe.atoms)
    if request.center is not None:
        yield Center(Atoms.of(request.center).select_fixed(universe, "center"))
    if wrap is not None:
        yield Wrap(universe.atoms, wrap)
    if request.fit is not None:
        fitted = Atoms.of(request.fit).select_fixed(universe, "fit")
        yield Fit(fitted, None if request.reference is None else _reference(request, fitted))


def transform_of(request: FramesRequest) -> Callable[[Universe], None] | None:
    """Return what adds transformations to a Universe of a run: those of the Universe it was given, and the steps.

    Where atoms are followed, molecules are whole before, and not by these.
    """
    given = None if request.given is None else request.given.transform
    whole = request.whole and not request.nojump
    asked = whole or request.center is not None or request.fit is not None
    return partial(_add, request, given, whole) if asked else given


def _add(request: FramesRequest, given: Callable[[Universe], None] | None, whole: bool, universe: Universe) -> None:
    if given is not None:
        given(universe)
    for step in frame_steps(request, universe, whole=whole):
        universe.trajectory.add_transformations(step)


def _reference(request: FramesRequest, fitted: AtomGroup) -> npt.NDArray[np.float32]:
    """Return where the atoms that are fitted are in the reference file."""
    import MDAnalysis

    assert request.fit is not None
    try:
        other = Atoms.of(request.fit).select_fixed(MDAnalysis.Universe(str(request.reference), to_guess=()), "fit")
    except (ValueError, TypeError, OSError, AttributeError) as error:
        raise UsageError(f"reference {request.reference}: {error}") from error
    if len(other) != len(fitted):
        raise UsageError(
            f"reference {request.reference} has {len(other)} atoms of fit {request.fit!r}, the trajectory has "
            f"{len(fitted)}"
        )
    return np.asarray(other.positions)
