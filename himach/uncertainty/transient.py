"""Where a run is equilibrated: `equilibration()`, by the least squared standard error of what is kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.uncertainty.arguments import as_series
from himach.uncertainty.block_mean import LEAST_N_EFF
from himach.uncertainty.correlation import autocovariance, geyer
from himach.uncertainty.estimate import FloatArray

__all__ = ["equilibration"]

#: Starts that are tried lie in this part of the values, at so many places; of more values means are taken first.
PART, PLACES, LARGEST = 0.9, 180, 8192


def equilibration(values: npt.ArrayLike) -> int:
    """Return the index of the first value to keep, so that the mean of what is kept has the least squared error.

    To keep a transient makes values vary more, and longer; to leave out more than that leaves fewer. Of 180 starts in
    the first 90 % of the values the one is taken that has the smallest variance of the mean, `inefficiency` times the
    variance over the number of values, among those that leave at least 8 independent values. It is 0 where none leaves
    as many, which `mean` then says.

    Parameters
    ----------
    values
        Numbers in time order, at equal distances, shape (n,).

    Returns
    -------
    int
        Index from 0, exact to n / 200.

    Raises
    ------
    UsageError
        If there are no values, or if they are nan, infinite, or no series.

    References
    ----------
    Clark et al., J. Chem. Theory Comput. (2024), 10.1021/acs.jctc.4c01359.
    """
    series = as_series("values", values)
    size = -(-len(series) // LARGEST)  # of bins, whose means have the same error of their mean
    binned = series[: len(series) // size * size].reshape(-1, size).mean(axis=1)
    largest = np.abs(binned).max()
    binned = binned / largest if largest > 0 else binned
    best, start = np.inf, 0
    for place in np.unique(np.arange(PLACES) * int(PART * len(binned)) // PLACES):
        squared = _squared_error(binned[place:])
        if squared < best:
            best, start = squared, int(place)
    return start * size


def _squared_error(kept: FloatArray) -> float:
    """Return the squared standard error of the mean of a series; infinite where it is worth too few values."""
    g = geyer(autocovariance(kept))
    return float(kept.var() * g / len(kept)) if len(kept) >= g * LEAST_N_EFF else np.inf
