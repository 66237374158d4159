"""How long values remember each other: `inefficiency()`, by Geyer's initial sequence of their autocovariance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.uncertainty.arguments import as_series
from himach.uncertainty.estimate import FloatArray

__all__ = ["autocovariance", "geyer", "inefficiency"]


def inefficiency(values: npt.ArrayLike) -> float:
    """Return how many of the values are worth one independent value.

    The variance of the mean of n values is `inefficiency` / n times their own. It is 1 for independent values, for a
    constant, and where successive values compensate each other: the estimate never takes n values for more than n.

    Parameters
    ----------
    values
        Numbers in time order, at equal distances, shape (n,).

    Returns
    -------
    float
        g, at least 1.

    Raises
    ------
    UsageError
        If there are no values, or if they are nan, infinite, or no series.

    References
    ----------
    Initial monotone sequence: Geyer, Statist. Sci. 7, 473 (1992).
    """
    return geyer(autocovariance(as_series("values", values)))


def autocovariance(values: FloatArray) -> FloatArray:
    """Return the autocovariance of a series (n,) about its mean at each of n lags, divided by n, in units of its own.

    Only ratios mean something: the series is scaled, so that squares neither overflow nor vanish.
    """
    n = len(values)
    if np.ptp(values / 2) == 0:  # whose mean may differ from it by rounding; half, as the range may overflow
        return np.zeros(n)
    scaled = values / np.abs(values).max()
    deviations = scaled - scaled.mean()
    deviations /= np.abs(deviations).max()
    size = 1 << (2 * n - 1).bit_length()
    transformed = np.fft.rfft(deviations, size)
    power = transformed.real**2 + transformed.imag**2
    return np.fft.irfft(power, size)[:n] / n


def geyer(covariance: FloatArray) -> float:
    """Return the inefficiency of a series by its autocovariance at lags 0, 1, 2, ...

    Sums of lags 2m and 2m + 1 are positive and fall in a reversible chain. They are added up to the first that is not
    positive, none of them as more than the one before.
    """
    if covariance[0] <= 0:
        return 1.0
    m = len(covariance) // 2
    pairs = covariance[0 : 2 * m : 2] + covariance[1 : 2 * m : 2]
    ended = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: ended[0]] if len(ended) else pairs)
    return max(1.0, float(2 * pairs.sum() / covariance[0] - 1))
