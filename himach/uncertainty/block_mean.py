"""The mean of correlated values in time order, with an interval by blocks: `mean()`, and the rule for blocks."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from himach.uncertainty.arguments import as_level, as_series, as_start
from himach.uncertainty.correlation import autocovariance, geyer
from himach.uncertainty.estimate import Estimate
from himach.uncertainty.quantiles import student

__all__ = ["FEWEST", "LEAST_N_EFF", "block_error", "mean", "n_blocks"]

#: Below so many independent values there is no interval: their number itself is then not known.
LEAST_N_EFF = 8
#: Independent values in a block, and the fewest and the most blocks.
IN_BLOCK, FEWEST, MOST = 8, 4, 20


def n_blocks(n_eff: float) -> int:
    """Return of how many blocks an interval is made; 0 where there is too little for one.

    Few long blocks: short ones are correlated, which makes intervals too narrow; fewer make them wide.
    """
    return 0 if n_eff < LEAST_N_EFF else min(MOST, max(FEWEST, math.floor(n_eff / IN_BLOCK)))


def mean(values: npt.ArrayLike, level: float = 0.95, *, start: int = 0) -> Estimate[float]:
    """Return the mean of correlated values with an interval.

    The values are cut into blocks of equal length, 4 to 20 of them with eight independent values each where there are
    as many. Their means give the interval by Student's t. What does not fill a block, less than one value for each
    block, is at the beginning; it counts for the mean, and for no block. Where values are very skewed, a mean of few
    independent ones is, too, and its interval contains the true mean less often: with probability 0.89 in place of 0.95
    for 16 log-normal values of skewness 6.

    Parameters
    ----------
    values
        Numbers in time order, at equal distances, shape (n,).
    level
        Probability with which the interval shall contain the true mean.
    start
        Index of the first value to use, as `equilibration` tells it.

    Returns
    -------
    Estimate
        It is not converged, and the limits are nan, below 8 independent values.

    Raises
    ------
    UsageError
        If there are no values, if they are nan, infinite, or no series, or if `level` or `start` is out of range.

    References
    ----------
    Batch means: Flegal and Jones, Ann. Statist. 38, 1034 (2010), 10.1214/09-AOS735. Number of independent values: see
    `inefficiency`.
    """
    level, every = as_level(level), as_series("values", values)
    start = as_start(start, len(every))
    used = every[start:]
    g = float(geyer(autocovariance(used)))
    n_eff = len(used) / g
    blocks = n_blocks(n_eff)
    value = float(used[0]) if (used == used[0]).all() else float(used.mean())
    error = block_error(used, blocks) if blocks else math.nan
    half = student(level, blocks - 1) * error if blocks else math.nan
    return Estimate(
        value=value,
        low=value - half,
        high=value + half,
        level=level,
        error=error,
        n_eff=n_eff,
        inefficiency=g,
        start=start,
        blocks=blocks,
        method="Student's t over blocks" if blocks else "none: fewer than 8 independent values",
        converged=blocks > 0,
    )


def block_error(used: npt.NDArray[np.float64], blocks: int) -> float:
    """Return the standard error of the mean of values (n,), by the spread of the means of so many blocks."""
    if (used == used[0]).all():
        return 0.0
    length = len(used) // blocks
    means = used[len(used) - blocks * length :].reshape(blocks, length).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(blocks))
