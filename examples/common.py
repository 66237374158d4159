"""What the built-in analyses share: parameters that are checked and named in errors, times, box vectors."""

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import himach
from himach.atoms import Atoms

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe

#: Water, and its oxygens, by the names of common force fields and programs.
WATER_RESIDUES = "resname HOH SOL WAT H2O TIP3 TIP3P TIP4 TIP4P SPC SPCE"
WATER = f"{WATER_RESIDUES} and name O OW OH2"


def select(universe: "Universe", analysis: himach.Analysis, parameter: str) -> "AtomGroup":
    """Return the atoms that a parameter of an analysis selects, at least one.

    Raises
    ------
    himach.UsageError
        If the selection cannot be read or selects no atom.
    """
    try:
        return Atoms.from_value(getattr(analysis, parameter)).select_fixed(universe, parameter)
    except himach.UsageError as error:
        raise himach.UsageError(f"{analysis.label()}: {error}") from error


def check_positive(analysis: himach.Analysis, *parameters: str) -> None:
    """Raise UsageError unless these parameters are greater than zero."""
    for parameter in parameters:
        value = getattr(analysis, parameter)
        if not value > 0:
            raise himach.UsageError(f"{analysis.label()}: {parameter} must be greater than 0, not {value}")


def warn_of_nm(analysis: himach.Analysis, parameter: str, matched: bool) -> None:
    """Warn if nothing `matched` within a length so small that nm may be meant."""
    value = getattr(analysis, parameter)
    if not matched and value <= 1.5:
        text = f"nothing is within {parameter} {value:g} Å: lengths are in Å, and {value:g} nm are {10 * value:g}"
        warnings.warn(f"{analysis.label()}: {text}", stacklevel=3)


def check_not_negative(analysis: himach.Analysis, *parameters: str) -> None:
    """Raise UsageError unless these parameters are 0 or more."""
    for parameter in parameters:
        value = getattr(analysis, parameter)
        if not value >= 0:
            raise himach.UsageError(f"{analysis.label()}: {parameter} must be 0 or more, not {value}")


def lag_times(analysis: himach.Analysis, tau_max: int) -> npt.NDArray[np.float64]:
    """Return the lag times 0, dt, ..., tau_max dt in ps, float64 (tau_max + 1,); fewer where fewer frames are selected.

    Raises
    ------
    himach.UsageError
        If tau_max is negative or the selected frames are not evenly spaced in time.
    """
    if tau_max < 0:
        raise himach.UsageError(f"{analysis.label()}: tau_max must be 0 or more, not {tau_max}")
    longest = max(len(analysis.frames) - 1, 0)
    if tau_max > longest:
        warnings.warn(
            f"{analysis.label()}: tau_max={tau_max} is cut to {longest}, {longest + 1} frames reach no further",
            stacklevel=2,
        )
    taus = np.arange(min(tau_max, longest) + 1)
    if len(taus) == 1:
        return taus.astype(np.float64)
    if analysis.dt is None:
        raise himach.UsageError(
            f"{analysis.label()} needs frames that are evenly spaced in time, and dt of the selected frames is uneven; "
            "select frames with start, stop and step that are"
        )
    return taus * abs(analysis.dt)  # of a backward selection dt is negative, lags are not


def box_vectors(boxes: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the box vectors of many boxes, as MDAnalysis.lib.mdamath.triclinic_vectors() does for one.

    Parameters
    ----------
    boxes
        (n, 6): lengths in Å and angles in degrees.

    Returns
    -------
    float64 (n, 3, 3) in Å; rows are the vectors, each matrix is lower triangular.
    """
    sizes = np.asarray(boxes, dtype=np.float64)
    a, b, c = sizes[:, :3].T
    # The cosine of 90 degrees is 0, not 6e-17: an orthogonal box has exact zeros.
    cosines = np.where(sizes[:, 3:] == 90, 0.0, np.cos(np.radians(sizes[:, 3:])))
    alpha, beta, gamma = cosines.T
    sine = np.sqrt(1 - gamma**2)
    vectors = np.zeros((len(sizes), 3, 3))
    vectors[:, 0, 0] = a
    vectors[:, 1, 0] = b * gamma
    vectors[:, 1, 1] = b * sine
    vectors[:, 2, 0] = c * beta
    vectors[:, 2, 1] = c * (alpha - beta * gamma) / sine
    vectors[:, 2, 2] = np.sqrt(c**2 - vectors[:, 2, 0] ** 2 - vectors[:, 2, 1] ** 2)
    return vectors


def width(box: npt.ArrayLike, volume: float) -> float:
    """Return the least distance in Å between two opposite faces of a box, lengths and angles (6,), of that volume."""
    a, b, c, alpha, beta, gamma = np.asarray(box, dtype=np.float64).tolist()
    sines = (math.sin(math.radians(angle)) for angle in (alpha, beta, gamma))
    return volume / max(area * sine for area, sine in zip((b * c, a * c, a * b), sines, strict=True))
