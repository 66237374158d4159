"""Transformations of a request, applied to each frame before map(): `frame_steps()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.frame import RawFrame, Vectors
from himach.opening.options import FramesRequest

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from himach.transformations import NoJump, Transformation

Rows = slice | npt.NDArray[np.int64]


@dataclass(slots=True)
class Part(RawFrame):
    """Some atoms of a frame, with the interface of a timestep for transformations."""

    @property
    def frame(self) -> int:
        """Frame number."""
        return self.number

    @property
    def dimensions(self) -> Vectors | None:
        """Box lengths and angles."""
        return self.box

    @property
    def triclinic_dimensions(self) -> Vectors | None:
        """Box vectors."""
        from MDAnalysis.lib.mdamath import triclinic_vectors

        return None if self.box is None else triclinic_vectors(self.box)

    def vectors_to_follow(self) -> npt.NDArray[np.float64]:
        """Return the box vectors for following atoms, float64 (3, 3); raises UsageError if there is no box."""
        vectors = self.triclinic_dimensions
        if vectors is None:
            raise UsageError(f"frame {self.number} has no box by which its atoms could be followed")
        return vectors.astype(np.float64)

    @property
    def has_velocities(self) -> bool:
        """Whether there are velocities."""
        return self.velocities is not None

    @property
    def has_forces(self) -> bool:
        """Whether there are forces."""
        return self.forces is not None


def rows(indices: npt.NDArray[np.int64]) -> Rows:
    """Return an index of rows: a slice if they are consecutive, which avoids a copy."""
    start, n = int(indices[0]) if len(indices) else 0, len(indices)
    return slice(start, start + n) if np.array_equal(indices, np.arange(start, start + n)) else indices


def frame_steps(steps: Iterable[Transformation | NoJump], universe: Universe) -> Iterator[Transformation]:
    """Yield the transformations, except `NoJump`, each bound to the first frame as the previous ones leave it."""
    from himach.transformations import Transformation

    for step in steps:
        if isinstance(step, Transformation):
            yield step.bind(universe)


def universe_transform(request: FramesRequest) -> Callable[[Universe], None] | None:
    """Return a function that adds the given Universe's transformations and the steps to a run's Universe."""
    own_transform = None if request.universe_input is None else request.universe_input.transform
    done_before = ("whole", "nojump") if request.transform_options.nojump else ()
    steps = [step for step in request.transform if step.name not in done_before]
    return partial(_add_transformations, own_transform, steps) if steps else own_transform


def _add_transformations(
    own_transform: Callable[[Universe], None] | None, steps: Sequence[Transformation | NoJump], universe: Universe
) -> None:
    if own_transform is not None:
        own_transform(universe)
    for step in frame_steps(steps, universe):
        universe.trajectory.add_transformations(step)
