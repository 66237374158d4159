"""How long stays last, though the end of a run cuts some off: `stays()`, with the survival curve; `mean_stay()`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.uncertainty.arguments import as_level, as_numbers, as_series, not_negative
from himach.uncertainty.estimate import Estimate, FloatArray
from himach.uncertainty.quantiles import gamma, normal

__all__ = ["Stays", "mean_stay", "stays"]


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
    restricted
        Mean of the shorter of a stay and the longest duration seen, for which no such thing is supposed.
    ended, cut
        Number of stays that ended, and of those that were cut off.
    """

    times: FloatArray
    survival: FloatArray
    low: FloatArray
    high: FloatArray
    mean: Estimate[float]
    restricted: Estimate[float]
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
    ones last: `restricted` tells the mean up to the longest duration seen, whatever the distribution.

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

    Raises
    ------
    UsageError
        If there is no stay, if a duration is negative, nan or infinite, or all are 0, or if shapes do not fit.

    References
    ----------
    Kaplan and Meier, J. Am. Stat. Assoc. 53, 457 (1958). Log-log limits: Kalbfleisch and Prentice, The Statistical
    Analysis of Failure Time Data (1980). Limits of the mean, by chi-square of 2 n + 1 degrees: Cox, Biometrika 40, 354
    (1953).
    """
    level = as_level(level)
    lasted = as_series("durations", durations)
    not_negative("durations", lasted)
    over = np.asarray(ended)
    if over.shape != lasted.shape:
        raise UsageError(f"ended must have the shape of durations, {lasted.shape}, not {over.shape}")
    if over.dtype.kind != "b" and not np.isin(over, (0, 1)).all():
        raise UsageError("ended must be True or False for each stay")
    if not lasted.any():
        raise UsageError("durations are all 0, which tells of no rate; give them in finer steps")
    over = over.astype(bool)
    times, deaths = np.unique(lasted[over], return_counts=True)
    at_risk = len(lasted) - np.searchsorted(np.sort(lasted), times, side="left")
    survival: FloatArray = np.cumprod(1 - deaths / at_risk, dtype=np.float64)
    low, high, terms = _band(survival, deaths, at_risk, level)
    times, survival = np.insert(times, 0, 0.0), np.insert(survival, 0, 1.0)
    return Stays(
        times=times,
        survival=survival,
        low=np.append(1, low),
        high=np.append(1, high),
        mean=mean_stay(lasted.sum(), over.sum(), level),
        restricted=_restricted(times, survival, terms, float(lasted.max()), level),
        ended=int(over.sum()),
        cut=int((~over).sum()),
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

    Raises
    ------
    UsageError
        If the shapes differ, a number is negative or not finite, or `ended` is not whole.
    """
    level, time, ends = as_level(level), as_numbers("total", total), as_numbers("ended", ended)
    not_negative("total", time)
    not_negative("ended", ends)
    if ends.shape != time.shape:
        raise UsageError(f"ended must have the shape of total, {time.shape}, not {ends.shape}")
    if (ends != np.floor(ends)).any():
        raise UsageError("ended must be whole numbers of stays")
    lasted, some = np.where(time > 0, time, math.nan), ends > 0
    many = np.where(some, ends, 1)
    most = gamma(ends + np.where(some, 0.5, 1), (1 + level) / 2)
    least = gamma(many + 0.5, (1 - level) / 2)
    beyond = np.where(time > 0, math.inf, math.nan)
    method = "all time over stays ended, exponential"
    if not some.all():
        none = "no stay ended: a lower limit only, exponential"
        method = none if time.ndim == 0 else f"{method}; where no stay ended, a lower limit only"
    value, low, high = np.where(some, lasted / many, beyond), lasted / most, np.where(some, lasted / least, beyond)
    error = np.where(some, lasted / many**1.5, math.nan)
    plain = [one if one.ndim else float(one) for one in (value, low, high, error)]
    return Estimate(
        value=plain[0], low=plain[1], high=plain[2], error=plain[3], level=level, n_eff=float(ends.sum()), method=method
    )


def _band(
    survival: FloatArray, deaths: npt.NDArray[np.int64], at_risk: npt.NDArray[np.int64], level: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log-log limits of a survival curve, and the terms of Greenwood's sum; nan where none is left."""
    left = at_risk - deaths
    terms = np.divide(deaths, at_risk * left, out=np.full(len(deaths), np.nan), where=left > 0)
    inside = (survival > 0) & (left > 0)
    log = np.log(np.where(inside, survival, 0.5))
    spread = normal(level) * np.sqrt(np.cumsum(terms)) / np.abs(log)
    low, high = np.exp(log * np.exp(spread)), np.exp(log * np.exp(-spread))
    return np.where(inside, low, np.nan), np.where(inside, high, np.nan), terms


def _restricted(
    times: FloatArray, survival: FloatArray, terms: FloatArray, longest: float, level: float
) -> Estimate[float]:
    """Return the area below a survival curve up to the longest duration, with Greenwood's error."""
    areas = survival * np.diff(np.append(times, longest))
    value = float(areas.sum())
    beyond = areas[::-1].cumsum()[::-1][1:]  # after each end
    ends = len(terms)
    error = math.sqrt(float(np.nansum(beyond**2 * terms))) if ends > 1 else math.nan
    half = normal(level) * error
    return Estimate(
        value=value,
        low=value - half,
        high=min(value + half, longest) if ends > 1 else math.nan,
        level=level,
        error=error,
        n_eff=float(ends),
        method=f"area of the Kaplan-Meier curve up to {longest:g}" if ends > 1 else "none: fewer than two ends",
        converged=ends > 1,
    )
