"""Where a run is equilibrated: `equilibration()`, by the least squared standard error of what is kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.uncertainty.arguments import as_series
from himach.uncertainty.block_mean import LEAST_N_EFF
from himach.uncertainty.correlation import geyer, products
from himach.uncertainty.estimate import FloatArray

__all__ = ["equilibration"]

#: Starts that are tried lie in this part of the values, at so many places; of more values means are taken first.
PART, PLACES, LARGEST = 0.9, 180, 8192
AT_ONCE = 1 << 14  # numbers that are looked at together


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
    places = np.arange(PLACES) * int(PART * len(binned)) // PLACES
    places = places[np.diff(places, prepend=-1) > 0]
    at_once = max(1, AT_ONCE // len(binned))
    some = [places[at : at + at_once] for at in range(0, len(places), at_once)]
    errors = np.concatenate([_squared_errors(binned[each[0] :], each - each[0]) for each in some])
    best = int(np.argmin(errors))
    return int(places[best]) * size if np.isfinite(errors[best]) else 0


def _squared_errors(series: FloatArray, places: npt.NDArray[np.int64]) -> FloatArray:
    """Return the squared standard errors of the means of a series from each place on; infinite where too few count."""
    kept = np.arange(len(series)) >= places[:, None]
    n = len(series) - places
    means = np.where(kept, series, 0.0).sum(axis=1) / n
    deviations = np.where(kept, series - means[:, None], 0.0)
    most, least = (np.flip(found.accumulate(series[::-1]))[places] for found in (np.maximum, np.minimum))
    constant = most == least  # whose mean may differ from it by rounding
    largest = np.where(constant, np.inf, np.abs(deviations).max(axis=1))
    covariance = products(deviations / largest[:, None])
    covariance[np.arange(len(series)) >= n[:, None]] = 0.0  # but for rounding
    g = geyer(covariance)
    variances = np.where(constant, 0.0, (deviations**2).sum(axis=1) / n)
    return np.where(n >= g * LEAST_N_EFF, variances * g / n, np.inf)
