"""Whether the second half of a series is as the first: `halves()`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from himach.uncertainty.arguments import as_level, as_series, as_start
from himach.uncertainty.block_mean import mean
from himach.uncertainty.estimate import Estimate
from himach.uncertainty.quantiles import student, welch_degrees

__all__ = ["halves"]


def halves(values: npt.ArrayLike, level: float = 0.95, *, start: int = 0) -> Estimate[float]:
    """Return how much the mean of the second half of correlated values is above that of the first.

    Each half has an interval by blocks, as `mean` makes it; that of their difference is Welch's. Halves that agree have
    0 in it. Where values drift within a half, few of them are independent, and the interval is wide.

    Parameters
    ----------
    values
        Numbers in time order, at equal distances, shape (n,). Of an odd number the one in the middle counts for no
        half.
    level
        Probability with which the interval shall contain the true difference.
    start
        Index of the first value to use.

    Returns
    -------
    Estimate
        Its `n_eff` and `blocks` are those of both halves together. It is not converged, and the limits are nan, where a
        half has less than 8 independent values.

    Raises
    ------
    UsageError
        If there are no values, if they are nan, infinite, or no series, or if `level` or `start` is out of range.

    References
    ----------
    Welch, Biometrika 34, 28 (1947); degrees of freedom: Satterthwaite, Biometrics Bull. 2, 110 (1946).
    """
    level, every = as_level(level), as_series("values", values)
    used = every[as_start(start, len(every)) :]
    size = max(1, len(used) // 2)
    first, second = mean(used[:size], level), mean(used[-size:], level)
    value, error = second.value - first.value, math.hypot(first.error, second.error)
    converged = first.converged and second.converged
    half = error
    if converged and error:
        shares = [np.square(each.error / error) for each in (first, second)]
        half *= student(level, float(welch_degrees(shares[0], first.blocks, shares[1], second.blocks)))
    return Estimate(
        value=value,
        low=value - half,
        high=value + half,
        level=level,
        error=error,
        n_eff=first.n_eff + second.n_eff,
        start=start,
        blocks=first.blocks + second.blocks if converged else 0,
        method="Welch's t over blocks" if converged else "none: fewer than 8 independent values in a half",
        converged=converged,
    )
