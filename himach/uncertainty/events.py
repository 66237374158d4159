"""Counts of events and proportions of time or of trials, with intervals: `count()`, `proportion()`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.uncertainty.arguments import as_level, as_numbers, not_negative
from himach.uncertainty.block_mean import LEAST_N_EFF
from himach.uncertainty.estimate import Estimate, FloatArray
from himach.uncertainty.quantiles import gamma, normal, student

__all__ = ["count", "proportion"]

#: Fewest blocks that tell of bursts, and how improbable they must be among events that know nothing of each other.
LEAST_BLOCKS, BURSTS = 4, 0.01


def count(
    k: npt.ArrayLike, level: float = 0.95, *, time: float | None = None, blocks: npt.ArrayLike | None = None
) -> Estimate[Any]:
    """Return a count of events, or their rate, with Garwood's limits.

    The limits are exact for events that know nothing of each other (Poisson), and the interval then contains the true
    mean with probability `level` at least. Where no event was seen, there is an upper limit only.

    Events in bursts vary more. They show in counts of blocks of time, if blocks are longer than bursts: where variance
    over mean (the Fano factor) is clearly above 1, the interval is by Student's t over the blocks, and the method says
    so.

    Parameters
    ----------
    k
        Number of events: an integer, or an array of them without `blocks`.
    level
        Probability with which the interval shall contain the true mean.
    time
        Time in which they were counted; the estimate is then events in a unit of it.
    blocks
        Events in each of n blocks of equal time, (n,), which add up to k; at least four tell of bursts.

    Returns
    -------
    Estimate
        Its type and shape are those of `k`. Its `n_eff` is k, by the Fano factor of bursts, if there are any.

    Raises
    ------
    UsageError
        If k is no whole number from 0, if blocks do not add up to it, or if time is not positive.

    References
    ----------
    Garwood, Biometrika 28, 437 (1936). Fano factor: Fano, Phys. Rev. 72, 26 (1947).
    """
    level, number = as_level(level), _whole("k", k)
    if time is not None and not (np.isfinite(time) and time > 0):
        raise UsageError(f"time must be positive and finite, not {time!r}")
    unit = 1.0 if time is None else float(time)
    low, high = gamma(number, (1 - level) / 2), gamma(number + 1, (1 + level) / 2)
    error, n_blocks, fano = np.full(number.shape, np.nan), 0, math.nan
    method = "Garwood's limits"
    if (number == 0).any():
        method += "; no event: an upper limit only" if number.ndim == 0 else "; of no event: an upper limit only"
    if blocks is not None:
        counted = _counted(blocks, number)
        fano, in_bursts = _fano(counted)
        method += f"; Fano factor {fano:.2g} of {len(counted)} blocks" if np.isfinite(fano) else ""
        if in_bursts:
            n_blocks = len(counted)
            error = np.asarray(counted.std(ddof=1) * math.sqrt(n_blocks))
            half = student(level, n_blocks - 1) * error
            low, high = np.maximum(0, number - half), number + half
            method = f"Student's t over blocks: events in bursts, Fano factor {fano:.2g}"
    return Estimate(
        value=_plain(number / unit),
        low=_plain(low / unit),
        high=_plain(high / unit),
        level=level,
        error=_plain(error / unit),
        n_eff=float(number.sum()) / (fano if n_blocks else 1),
        blocks=n_blocks,
        method=method,
    )


def proportion(k: npt.ArrayLike, n_eff: float, level: float = 0.95) -> Estimate[Any]:
    """Return a proportion with Wilson's interval.

    Of a series of n correlated values of 0 and 1 with mean p, `n_eff` is n / `inefficiency`, and k is p times that.

    Parameters
    ----------
    k
        Successes among the independent trials, from 0 to `n_eff`; need not be whole. A number or an array.
    n_eff
        Number of independent trials; need not be whole.
    level
        Probability with which the interval shall contain the true proportion: on average, as such intervals cannot do
        so for each.

    Returns
    -------
    Estimate
        It is not converged, and the limits are nan, below 8 independent trials.

    Raises
    ------
    UsageError
        If k does not lie between 0 and `n_eff`.

    References
    ----------
    Wilson, J. Am. Stat. Assoc. 22, 209 (1927); that its coverage is near the level where others' is not: Brown, Cai and
    DasGupta, Statist. Sci. 16, 101 (2001), 10.1214/ss/1009213286.
    """
    level, number = as_level(level), as_numbers("k", k)
    trials = float(as_numbers("n_eff", n_eff))
    if trials <= 0 or number.min() < 0 or number.max() > trials * (1 + 1e-12):
        raise UsageError(f"k must lie between 0 and n_eff, {trials:g}, not at {number.min():g} to {number.max():g}")
    p = np.minimum(number / trials, 1)
    converged = trials >= LEAST_N_EFF
    z = normal(level) if converged else math.nan
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(p * (1 - p) / trials + (z / (2 * trials)) ** 2)
    low, high = np.where(p == 0, 0 * z, middle - half), np.where(p == 1, 1 + 0 * z, middle + half)
    return Estimate(
        value=_plain(p),
        low=_plain(low),
        high=_plain(high),
        level=level,
        error=_plain(np.sqrt(p * (1 - p) / trials)),
        n_eff=trials,
        method="Wilson's interval" if converged else "none: fewer than 8 independent trials",
        converged=converged,
    )


def _whole(name: str, k: npt.ArrayLike) -> FloatArray:
    """Return whole numbers from 0 as float64."""
    number = as_numbers(name, k)
    not_negative(name, number)
    if (number != np.floor(number)).any():
        raise UsageError(f"{name} must be a whole number of events")
    return number


def _counted(blocks: npt.ArrayLike, number: FloatArray) -> FloatArray:
    """Return the events of each block, if they are those of the whole."""
    counted = _whole("blocks", blocks)
    if counted.ndim != 1 or number.ndim != 0:
        raise UsageError(f"blocks are of shape (n,), for a single k; they are of shape {counted.shape}")
    if counted.sum() != number:
        raise UsageError(f"blocks add up to {counted.sum():g} events, not to the {number:g} of k")
    return counted


def _fano(counted: FloatArray) -> tuple[float, bool]:
    """Return the Fano factor of counts of blocks, and whether it is clearly above that of events without memory."""
    n, mean = len(counted), counted.mean()
    if n < LEAST_BLOCKS or mean == 0:
        return math.nan, False
    fano = float(counted.var(ddof=1) / mean)
    return fano, bool((n - 1) / 2 * fano > gamma((n - 1) / 2, 1 - BURSTS))


def _plain(value: Any) -> Any:
    """Return an array of no dimension as a float."""
    return value if np.ndim(value) else float(value)
