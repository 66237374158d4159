"""Counts of events and proportions, `count()` and `proportion()`; how long stays last: `stays()`, `mean_stay()`."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.uncertainty.block_mean import LEAST_N_EFF
from himach.uncertainty.estimate import (
    Estimate,
    FloatArray,
    as_counts,
    as_level,
    as_numbers,
    as_series,
    gamma,
    normal,
    not_negative,
    student,
)

#: Fewest blocks that show bursts, and how improbable these must be among independent events.
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

    References
    ----------
    Garwood, Biometrika 28, 437 (1936). Fano factor: Fano, Phys. Rev. 72, 26 (1947).

    Examples
    --------
    >>> print(count(4))
    4 [1, 10] (95 %, Garwood's limits)
    """
    level, number = as_level(level), as_counts("k", k)
    if time is not None and not (np.isfinite(time) and time > 0):
        raise UsageError(f"time must be positive and finite, not {time!r}")
    unit = 1.0 if time is None else float(time)
    low, high = gamma(number, (1 - level) / 2), gamma(number + 1, (1 + level) / 2)
    error, n_blocks, fano = np.full(number.shape, np.nan), 0, math.nan
    method = "Garwood's limits"
    if (number == 0).any():
        method += "; no event: an upper limit only" if number.ndim == 0 else "; of no event: an upper limit only"
    if blocks is not None:
        counts = _check_block_counts(blocks, number)
        fano, in_bursts = _fano(counts)
        method += f"; Fano factor {fano:.2g} of {len(counts)} blocks" if np.isfinite(fano) else ""
        if in_bursts:
            n_blocks = len(counts)
            error = np.asarray(counts.std(ddof=1) * math.sqrt(n_blocks))
            half = student(level, n_blocks - 1) * error
            low, high = np.maximum(0, number - half), number + half
            method = f"Student's t over blocks: events in bursts, Fano factor {fano:.2g}"
    n_eff = float(number.sum()) / (fano if n_blocks else 1)
    return Estimate.from_limits(
        number / unit, low / unit, high / unit, level=level, error=error / unit, n_eff=n_eff, blocks=n_blocks,
        method=method,
    )  # fmt: skip


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

    References
    ----------
    Wilson, J. Am. Stat. Assoc. 22, 209 (1927); that its coverage is near the level where others' is not: Brown, Cai and
    DasGupta, Statist. Sci. 16, 101 (2001), 10.1214/ss/1009213286.

    Examples
    --------
    >>> print(proportion(3, 10))
    0.3 [0.1, 0.6] (95 %, Wilson's interval)
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
    error = np.sqrt(p * (1 - p) / trials)
    method = "Wilson's interval" if converged else "none: fewer than 8 independent trials"
    return Estimate.from_limits(
        p, low, high, level=level, error=error, n_eff=trials, method=method, converged=converged
    )


def _check_block_counts(blocks: npt.ArrayLike, number: FloatArray) -> FloatArray:
    """Check that the events of blocks add up to the whole; return them."""
    counts = as_counts("blocks", blocks)
    if counts.ndim != 1 or number.ndim != 0:
        raise UsageError(f"blocks are of shape (n,), for a single k; they are of shape {counts.shape}")
    if counts.sum() != number:
        raise UsageError(f"blocks add up to {counts.sum():g} events, not to the {number:g} of k")
    return counts


def _fano(counts: FloatArray) -> tuple[float, bool]:
    """Return the Fano factor of counts of blocks, and whether it is clearly above that of independent events."""
    n, mean = len(counts), counts.mean()
    if n < LEAST_BLOCKS or mean == 0:
        return math.nan, False
    fano = float(counts.var(ddof=1) / mean)
    return fano, bool((n - 1) / 2 * fano > gamma((n - 1) / 2, 1 - BURSTS))


@dataclass(frozen=True, eq=False, kw_only=True)
class Stays:
    """How long stays last.

    Attributes
    ----------
    times
        Times at which stays ended, ascending, with 0 before them: float64 (n,), in the unit of the durations.
    survival
        Probability that a stay lasts longer than each of `times`: float64 (n,). It falls at these times alone.
    low, high
        Limits of `survival` at each time by itself: float64 (n,). They are 1 at time 0, and nan where none is left.
    mean
        Mean residence time, if stays end at the same rate however long they have lasted.
    ended, cut
        Number of stays that ended, and of those that were cut off.
    """

    times: FloatArray
    survival: FloatArray
    low: FloatArray
    high: FloatArray
    mean: Estimate[float]
    ended: int
    cut: int

    def __str__(self) -> str:
        return f"mean stay {self.mean}, {self.ended} stays ended, {self.cut} cut off"


def stays(durations: npt.ArrayLike, ended: npt.ArrayLike, level: float = 0.95) -> Stays:
    """Return how long stays last, by those that ended and those that were cut off.

    Give each stay that was entered while it was watched, until it ended or the watching did. Leave out stays that had
    begun before: of these the long ones are seen more often. Stays are taken to know nothing of each other, and whether
    a stay is cut off to have nothing to do with how long it would have lasted.

    The survival curve is that of Kaplan and Meier. The mean residence time is the time that all stays lasted together,
    divided by the number that ended. This is the likeliest mean where stays end at the same rate however long they have
    lasted (two states, exponential), and is without bias then, but for one part in the number that ended, even where
    most stays outlast the run. Where stays are of several kinds, no estimate from short runs knows how long the long
    ones last.

    Parameters
    ----------
    durations
        How long each stay was seen to last: (n,), not negative, in any unit of time.
    ended
        Whether it ended then, or was cut off: bool (n,).
    level
        Probability with which each interval shall contain the true value.

    Returns
    -------
    Stays
        Where no stay ended, the mean is infinite and has a lower limit only.

    References
    ----------
    Kaplan and Meier, J. Am. Stat. Assoc. 53, 457 (1958). Log-log limits: Kalbfleisch and Prentice, The Statistical
    Analysis of Failure Time Data (1980). Limits of the mean, by chi-square of 2 n + 1 degrees: Cox, Biometrika 40, 354
    (1953).

    Examples
    --------
    >>> print(stays([1.0, 2.0, 3.0], [True, True, False]))
    mean stay 3 [1, 14] (95 %, all time over stays ended, exponential), 2 stays ended, 1 cut off
    """
    level = as_level(level)
    lasted = as_series("durations", durations)
    not_negative("durations", lasted)
    has_ended = np.asarray(ended)
    if has_ended.shape != lasted.shape:
        raise UsageError(f"ended must have the shape of durations, {lasted.shape}, not {has_ended.shape}")
    if has_ended.dtype.kind != "b" and not np.isin(has_ended, (0, 1)).all():
        raise UsageError("ended must be True or False for each stay")
    if not lasted.any():
        raise UsageError("durations are all 0, which tells of no rate; give them in finer steps")
    has_ended = has_ended.astype(bool)
    times, n_ended = np.unique(lasted[has_ended], return_counts=True)
    at_risk = len(lasted) - np.searchsorted(np.sort(lasted), times, side="left")
    survival: FloatArray = np.cumprod(1 - n_ended / at_risk, dtype=np.float64)
    low, high = _band(survival, n_ended, at_risk, level)
    return Stays(
        times=np.insert(times, 0, 0.0),
        survival=np.insert(survival, 0, 1.0),
        low=np.append(1, low),
        high=np.append(1, high),
        mean=mean_stay(lasted.sum(), has_ended.sum(), level),
        ended=int(has_ended.sum()),
        cut=int((~has_ended).sum()),
    )


def mean_stay(total: npt.ArrayLike, ended: npt.ArrayLike, level: float = 0.95) -> Estimate[Any]:
    """Return mean residence times, if stays end at the same rate however long they have lasted: `Stays.mean`.

    Parameters
    ----------
    total
        The time that stays lasted together, those that were cut off for as long as they were seen: a number, or an
        array, of many kinds of stays.
    ended
        How many of them ended, of the same shape.
    level
        Probability with which the interval shall contain the true mean: on average, as ends are counts.

    Returns
    -------
    Estimate
        Its type and shape are those of `total`. The mean is inf where no stay ended, and nan where none lasted.

    Examples
    --------
    >>> print(mean_stay(6.0, 2))
    3 [1, 14] (95 %, all time over stays ended, exponential)
    """
    level, time, n_ended = as_level(level), as_numbers("total", total), as_counts("ended", ended, "stays")
    not_negative("total", time)
    if n_ended.shape != time.shape:
        raise UsageError(f"ended must have the shape of total, {time.shape}, not {n_ended.shape}")
    lasted, any_ended = np.where(time > 0, time, math.nan), n_ended > 0
    divisor = np.where(any_ended, n_ended, 1)
    upper = gamma(n_ended + np.where(any_ended, 0.5, 1), (1 + level) / 2)
    lower = gamma(divisor + 0.5, (1 - level) / 2)
    beyond = np.where(time > 0, math.inf, math.nan)
    method = "all time over stays ended, exponential"
    if not any_ended.all():
        none = "no stay ended: a lower limit only, exponential"
        method = none if time.ndim == 0 else f"{method}; where no stay ended, a lower limit only"
    value, high = (np.where(any_ended, limit, beyond) for limit in (lasted / divisor, lasted / lower))
    error = np.where(any_ended, lasted / divisor**1.5, math.nan)
    n_eff = float(n_ended.sum())
    return Estimate.from_limits(value, lasted / upper, high, error=error, level=level, n_eff=n_eff, method=method)


def _band(
    survival: FloatArray, n_ended: npt.NDArray[np.int64], at_risk: npt.NDArray[np.int64], level: float
) -> tuple[FloatArray, FloatArray]:
    """Return log-log limits of a survival curve, by Greenwood's sum; nan where no stay is left."""
    remaining = at_risk - n_ended
    terms = np.divide(n_ended, at_risk * remaining, out=np.full(len(n_ended), np.nan), where=remaining > 0)
    inside = (survival > 0) & (remaining > 0)
    log = np.log(np.where(inside, survival, 0.5))
    spread = normal(level) * np.sqrt(np.cumsum(terms)) / np.abs(log)
    low, high = np.exp(log * np.exp(spread)), np.exp(log * np.exp(-spread))
    return np.where(inside, low, np.nan), np.where(inside, high, np.nan)
