"""How long values remember each other: `inefficiency()`, by Geyer's initial sequence of their autocovariance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.uncertainty.arguments import as_series
from himach.uncertainty.estimate import FloatArray

__all__ = ["autocovariance", "geyer", "inefficiency", "products"]


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
    return float(geyer(autocovariance(as_series("values", values))))


def autocovariance(values: FloatArray) -> FloatArray:
    """Return the autocovariance of a series (n,) about its mean at each of n lags, divided by n, in units of its own.

    Only ratios mean something: the series is scaled, so that squares neither overflow nor vanish.
    """
    n = len(values)
    if np.ptp(values / 2) == 0:  # whose mean may differ from it by rounding; half, as the range may overflow
        return np.zeros(n)
    scaled = values / np.abs(values).max()
    deviations = scaled - scaled.mean()
    return products(deviations / np.abs(deviations).max()) / n


def products(deviations: FloatArray) -> FloatArray:
    """Return the sums of products of deviations (..., n) at each of n lags."""
    n = deviations.shape[-1]
    size = 1 << (2 * n - 1).bit_length()
    transformed = np.fft.rfft(deviations, size)
    power = transformed.real**2 + transformed.imag**2
    return np.fft.irfft(power, size)[..., :n]


def geyer(covariance: FloatArray) -> FloatArray:
    """Return the inefficiencies (...) of series by their autocovariances (..., n) at lags 0, 1, 2, ...

    Sums of lags 2m and 2m + 1 are positive and fall in a reversible chain. They are added up to the first that is not
    positive, none of them as more than the one before.
    """
    m = covariance.shape[-1] // 2
    pairs = covariance[..., 0 : 2 * m : 2] + covariance[..., 1 : 2 * m : 2]
    counted = np.logical_and.accumulate(pairs > 0, axis=-1)
    sums = np.where(counted, np.minimum.accumulate(pairs, axis=-1), 0).sum(axis=-1)
    variance = covariance[..., 0]
    return np.asarray(np.maximum(1.0, 2 * sums / np.where(variance > 0, variance, np.inf) - 1))
