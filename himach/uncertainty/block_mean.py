"""Correlated values in time order: `inefficiency()`, `mean()` by blocks, `halves()`, and `equilibration()`."""

import math

import numpy as np
import numpy.typing as npt

from himach.uncertainty.estimate import Estimate, FloatArray, as_level, as_series, as_start, student, welch_degrees

#: With fewer independent values there is no interval: their number itself is then uncertain.
LEAST_N_EFF = 8
#: Independent values in a block; the fewest and the most blocks.
IN_BLOCK, FEWEST, MOST = 8, 4, 20
#: Starts of `equilibration`: their part of the values, and their number; longer series are averaged in bins first.
PART, PLACES, LARGEST = 0.9, 180, 8192
AT_ONCE = 1 << 14  # numbers processed together


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

    References
    ----------
    Initial monotone sequence: Geyer, Statist. Sci. 7, 473 (1992).

    Examples
    --------
    >>> inefficiency([1.0, 3.0, 2.0, 4.0])
    1.0
    """
    return float(geyer(autocovariance(as_series("values", values))))


def autocovariance(values: FloatArray) -> FloatArray:
    """Return the autocovariance of a series (n,) about its mean at each of n lags, divided by n, in units of its own.

    The series is scaled so that squares neither overflow nor vanish: only ratios mean something.
    """
    n = len(values)
    if np.ptp(values / 2) == 0:  # the mean may differ by rounding; half, as the range may overflow
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
    """Return the inefficiencies (...) of series from their autocovariances (..., n) at lags 0, 1, 2, ...

    In a reversible chain sums of lags 2m and 2m + 1 are positive and decrease. They are added up to the first that is
    not positive, each limited to the one before.
    """
    m = covariance.shape[-1] // 2
    pairs = covariance[..., 0 : 2 * m : 2] + covariance[..., 1 : 2 * m : 2]
    is_counted = np.logical_and.accumulate(pairs > 0, axis=-1)
    sums = np.where(is_counted, np.minimum.accumulate(pairs, axis=-1), 0).sum(axis=-1)
    variance = covariance[..., 0]
    return np.asarray(np.maximum(1.0, 2 * sums / np.where(variance > 0, variance, np.inf) - 1))


def n_blocks(n_eff: float) -> int:
    """Return the number of blocks of an interval; 0 if there are too few values.

    Blocks are few and long: short ones are correlated, which makes intervals too narrow; fewer make them wide.
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

    References
    ----------
    Batch means: Flegal and Jones, Ann. Statist. 38, 1034 (2010), 10.1214/09-AOS735. Number of independent values: see
    `inefficiency`.

    Examples
    --------
    >>> print(mean(np.random.default_rng(1).normal(5, 1, 400)))
    4.92 [4.85, 4.98] (95 %, 20 blocks, N_eff 400)
    """
    level, series = as_level(level), as_series("values", values)
    start = as_start(start, len(series))
    used = series[start:]
    g = float(geyer(autocovariance(used)))
    n_eff = len(used) / g
    blocks = n_blocks(n_eff)
    value = float(used[0]) if (used == used[0]).all() else float(used.mean())
    error = block_error(used, blocks) if blocks else math.nan
    half = student(level, blocks - 1) * error if blocks else math.nan
    method = "Student's t over blocks" if blocks else "none: fewer than 8 independent values"
    return Estimate.around(
        value, half, level=level, error=error, n_eff=n_eff, inefficiency=g, start=start, blocks=blocks, method=method,
        converged=blocks > 0,
    )  # fmt: skip


def block_error(used: npt.NDArray[np.float64], blocks: int) -> float:
    """Return the standard error of the mean of values (n,), from the spread of the means of blocks."""
    if (used == used[0]).all():
        return 0.0
    length = len(used) // blocks
    means = used[len(used) - blocks * length :].reshape(blocks, length).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(blocks))


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

    References
    ----------
    Welch, Biometrika 34, 28 (1947); degrees of freedom: Satterthwaite, Biometrics Bull. 2, 110 (1946).

    Examples
    --------
    >>> print(halves(np.random.default_rng(1).normal(5, 1, 400)))
    -0.02 [-0.15, 0.12] (95 %, 40 blocks, N_eff 400)
    """
    level, series = as_level(level), as_series("values", values)
    used = series[as_start(start, len(series)) :]
    size = max(1, len(used) // 2)
    first, second = mean(used[:size], level), mean(used[-size:], level)
    value, error = second.value - first.value, math.hypot(first.error, second.error)
    converged = first.converged and second.converged
    half = error
    if converged and error:
        shares = [np.square(estimate.error / error) for estimate in (first, second)]
        half *= student(level, welch_degrees(shares[0], first.blocks, shares[1], second.blocks))
    method = "Welch's t over blocks" if converged else "none: fewer than 8 independent values in a half"
    return Estimate.around(
        value, half, level=level, error=error, n_eff=first.n_eff + second.n_eff, start=start, method=method,
        blocks=first.blocks + second.blocks if converged else 0, converged=converged,
    )  # fmt: skip


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

    References
    ----------
    Clark et al., J. Chem. Theory Comput. (2024), 10.1021/acs.jctc.4c01359.

    Examples
    --------
    >>> equilibration([*range(50, 10, -1), *np.random.default_rng(1).normal(5, 1, 400)])
    41
    """
    series = as_series("values", values)
    size = -(-len(series) // LARGEST)  # of bins, whose means have the same error of their mean
    binned = series[: len(series) // size * size].reshape(-1, size).mean(axis=1)
    largest = np.abs(binned).max()
    binned = binned / largest if largest > 0 else binned
    places = np.arange(PLACES) * int(PART * len(binned)) // PLACES
    places = places[np.diff(places, prepend=-1) > 0]
    at_once = max(1, AT_ONCE // len(binned))
    batches = [places[first : first + at_once] for first in range(0, len(places), at_once)]
    errors = np.concatenate([_squared_errors(binned[batch[0] :], batch - batch[0]) for batch in batches])
    best = int(np.argmin(errors))
    return int(places[best]) * size if np.isfinite(errors[best]) else 0


def _squared_errors(series: FloatArray, places: npt.NDArray[np.int64]) -> FloatArray:
    """Return the squared standard errors of the means of a series from each place on; infinite if too few count."""
    is_kept = np.arange(len(series)) >= places[:, None]
    n = len(series) - places
    means = np.where(is_kept, series, 0.0).sum(axis=1) / n
    deviations = np.where(is_kept, series - means[:, None], 0.0)
    most, least = (np.flip(function.accumulate(series[::-1]))[places] for function in (np.maximum, np.minimum))
    constant = most == least  # the mean may differ by rounding
    largest = np.where(constant, np.inf, np.abs(deviations).max(axis=1))
    covariance = products(deviations / largest[:, None])
    covariance[np.arange(len(series)) >= n[:, None]] = 0.0  # but for rounding
    g = geyer(covariance)
    variances = np.where(constant, 0.0, (deviations**2).sum(axis=1) / n)
    return np.where(n >= g * LEAST_N_EFF, variances * g / n, np.inf)
