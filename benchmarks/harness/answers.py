"""Whether the tools that are compared found the same: figures of different answers are no comparison."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError

__all__ = ["Agreement", "DisagreementError", "compare", "read_column"]

Floats = npt.NDArray[np.float64]


class DisagreementError(HimachError):
    """Two tools gave different answers to the same question."""


@dataclass(frozen=True)
class Agreement:
    """The largest difference of any two numbers of two answers, what is allowed, both in `unit`, and why that much."""

    what: str
    peer: str
    difference: float
    tolerance: float
    unit: str
    reason: str


def compare(
    what: str, ours: Floats, peer: str, theirs: Floats, tolerance: float, reason: str, unit: str = ""
) -> Agreement:
    """Compare an answer with a peer's, both float64 (n,); NaN is equal to NaN. Any other difference is an error."""
    if ours.shape != theirs.shape:
        raise DisagreementError(f"{what}: himach has {ours.size} numbers and {peer} {theirs.size}")
    if not ours.size:
        raise DisagreementError(f"{what}: neither himach nor {peer} has any number")
    apart = np.where(np.isnan(ours) & np.isnan(theirs), 0.0, np.abs(ours - theirs))
    worst = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
    if not apart[worst] <= tolerance:
        raise DisagreementError(
            f"{what}: himach and {peer} disagree: number {worst} is {ours[worst]:.9g} and {theirs[worst]:.9g} {unit}, "
            f"and {tolerance:g} is allowed ({reason})"
        )
    return Agreement(what, peer, float(apart[worst]), tolerance, unit, reason)


def read_column(path: Path, name: str) -> Floats:
    """Return one column of a CSV that himach wrote, float64 (n,); empty cells are NaN."""
    with path.open(newline="") as lines:
        return np.array([float(row[name] or "nan") for row in csv.DictReader(lines)])
