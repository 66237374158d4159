"""What a mount asks of whoever has datasets, this node's store or a server: `Datasets`, `Facts`, `Frames`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from himach.frame import RawFrame

__all__ = ["Datasets", "Facts", "Frames"]


@dataclass(frozen=True)
class Facts:
    """A dataset as it is now, told without reading its frames.

    Attributes
    ----------
    name
        Of the dataset.
    version
        Differs when the same name means other frames; it stays as it is when frames are added.
    n_frames, n_atoms, has_velocities, has_forces
        As those of `Origin`.
    has_box
        Whether the first frames have a box; True where that is not known.
    changed
        When it last changed, ns since 1970.
    topologies
        Bytes of each topology file that is attached, by suffix, as in ``".gro"``.
    """

    name: str
    version: bytes
    n_frames: int
    n_atoms: int
    has_velocities: bool
    has_forces: bool
    has_box: bool
    changed: int
    topologies: Mapping[str, int] = field(default_factory=dict)


class Frames(Protocol):
    """The frames of a dataset, for one thread at a time; any method may raise HimachError, StoreError or OSError."""

    def stamps(self) -> tuple[float, float]:
        """Return the first frame's time and the time between two frames, ps; 0 for what is not known."""

    def read(self, start: int, stop: int) -> Iterator[RawFrame]:
        """Read frames in order; the arrays of one hold until the next. They may be read ahead of that."""

    def close(self) -> None:
        """Close what is open."""


class Datasets(Protocol):
    """Datasets by name; its methods may be called by several threads at once, and raise as those of `Frames` do."""

    def names(self) -> list[str]:
        """Return the names of all datasets, without opening them."""

    def facts(self, name: str) -> Facts | None:
        """Return what there is to know of a dataset without reading its frames; None if there is none now."""

    def topology(self, facts: Facts, suffix: str) -> bytes:
        """Return an attached topology."""

    def open(self, facts: Facts) -> Frames:
        """Open a dataset for reading frames."""
