"""Independent runs of one system: `replicas()`; whether two groups of runs differ: `difference()`, `holm()`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from himach.errors import UsageError
from himach.uncertainty.estimate import (
    Estimate,
    FloatArray,
    as_level,
    as_numbers,
    as_runs,
    not_negative,
    plain,
    student,
    unconverged,
    welch_degrees,
)

V = TypeVar("V", float, FloatArray)

#: Reason for a missing interval.
SINGLE = "none: a single run does not tell how runs differ"


@dataclass(frozen=True, eq=False, kw_only=True)
class Replicas(Estimate[V]):
    """An estimate over independent runs.

    Attributes
    ----------
    within
        What one run's own standard error is, as the root of the mean square over the runs; nan where it is not known.
        Of the type and shape of `value`, as is `between`.
    between
        Standard deviation of the runs' values. Where it is well above `within`, the runs differ by more than they say
        themselves: each has seen a part of what there is.
    """

    within: V
    between: V

    def _basis(self) -> str:
        return self.method if self.blocks == 2 else f"{self.blocks} runs"


def replicas(
    means: npt.ArrayLike | Sequence[Estimate[Any]], level: float = 0.95, *, errors: npt.ArrayLike | None = None
) -> Replicas[Any]:
    """Return the mean over independent runs with an interval by Student's t.

    Each run counts alike, whatever it says of its own error. What an interval over two runs is worth, its method says:
    t is 12.7 at a level of 0.95.

    Parameters
    ----------
    means
        A value for each run, (n,), or a curve for each, (n, ...); or the runs' Estimates.
    level
        Probability with which the interval shall contain the true value.
    errors
        The runs' own standard errors, of the shape of `means`, for `within`; those of Estimates are known.

    Returns
    -------
    Replicas
        Its `n_eff` and `blocks` are the number of runs. A single run is not converged.

    Examples
    --------
    >>> print(replicas([1.0, 2.0, 3.0]))
    2 [0, 4] (95 %, 3 runs)
    """
    level = as_level(level)
    estimates = list(means) if isinstance(means, Sequence) else []
    if any(isinstance(estimate, Estimate) for estimate in estimates):
        if errors is not None or not all(isinstance(estimate, Estimate) for estimate in estimates):
            raise UsageError("means must be numbers or Estimates, not both; Estimates bring their errors with them")
        values = as_numbers("means", [estimate.value for estimate in estimates])
        own_errors = np.array([estimate.error for estimate in estimates], dtype=np.float64)
    else:
        values = as_runs("means", np.asarray(means))
        own_errors = np.full(values.shape, np.nan) if errors is None else as_numbers("errors", errors)
    if own_errors.shape != values.shape:
        raise UsageError(f"errors must have the shape of means, {values.shape}, not {own_errors.shape}")
    not_negative("errors", np.nan_to_num(own_errors))
    n = len(values)
    value = values.mean(axis=0)
    between = values.std(axis=0, ddof=1) if n > 1 else unconverged(value)
    t = student(level, n - 1) if n > 1 else math.nan
    error = between / math.sqrt(n)
    wide = f": t = {t:.1f}, a third run would make it much narrower" if n == 2 else ""
    return Replicas.around(
        value, t * error, level=level, error=error, n_eff=float(n), blocks=n, converged=n > 1,
        method=f"Student's t over {n} runs{wide}" if n > 1 else SINGLE,
        within=plain(np.sqrt((own_errors**2).mean(axis=0))), between=plain(between),
    )  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Difference(Estimate[V]):
    """How much the means of two groups of independent runs differ.

    Attributes
    ----------
    df
        Degrees of freedom, by Welch and Satterthwaite; nan where there is no spread. Of the type and shape of `value`,
        as is `p`.
    p
        Probability of a difference at least as large, of either sign, if the true means are equal: Welch's t test. It
        is nan where there is no spread.
    """

    df: V
    p: V

    def _basis(self) -> str:
        return self.method


def difference(first: npt.ArrayLike, second: npt.ArrayLike, level: float = 0.95) -> Difference[Any]:
    """Return how much the mean over a second group of independent runs is above that of a first.

    The interval is Welch's: the groups may spread differently. Each run counts alike. Of a curve each value is looked
    at by itself, so that of many some will differ by chance: see `holm`.

    Parameters
    ----------
    first, second
        A value for each run, (n,), or a curve for each, (n, ...), in the same unit. The groups may differ in n.
    level
        Probability with which the interval shall contain the true difference.

    Returns
    -------
    Difference
        Its `value` is the mean of `second` less that of `first`; its `n_eff` and `blocks` are the number of all runs.
        It is not converged with a single run in a group: limits, `error`, `df` and `p` are nan then. Where all runs of
        each group have the same value, the limits are `value`, `error` is 0, and `p` is nan.

    References
    ----------
    Welch, Biometrika 34, 28 (1947); degrees of freedom: Satterthwaite, Biometrics Bull. 2, 110 (1946).

    Examples
    --------
    >>> print(difference([1.0, 2.0, 3.0], [2.0, 3.0, 5.0]))
    1 [-2, 4] (95 %, Welch's t over 3 and 3 runs)
    """
    level = as_level(level)
    groups = as_runs("first", first), as_runs("second", second)
    if groups[0].shape[1:] != groups[1].shape[1:]:
        shapes = " and ".join(str(group.shape) for group in groups)
        raise UsageError(f"first and second may differ in the number of runs alone, not in that of values: {shapes}")
    n_first, n_second = map(len, groups)
    converged = min(n_first, n_second) > 1
    with np.errstate(all="ignore"):  # values too large to be squared have nan as limits
        (first_mean, first_error), (second_mean, second_error) = map(_moments, groups)
        value, error = second_mean - first_mean, np.sqrt(first_error + second_error)
        df = welch_degrees(first_error, n_first, second_error, n_second)
        p = 2 * stdtr(df, -np.abs(value / error))  # of a t as far from 0, or farther
        half = np.where(error == 0, 0, student(level, df) * error)
    method = f"Welch's t over {n_first} and {n_second} runs" if converged else SINGLE
    return Difference.around(
        value, half, level=level, error=error, n_eff=float(n_first + n_second), blocks=n_first + n_second,
        method=method, converged=converged, df=plain(df), p=plain(p),
    )  # fmt: skip


def holm(p: npt.ArrayLike) -> FloatArray:
    """Return the p of several tests, corrected for there being several.

    To call those tests significant whose corrected p is at most 0.05 is to call one of them so by mistake, or more,
    with probability 0.05 at most, however the tests depend on each other. This is the step-down correction by Holm.

    Parameters
    ----------
    p
        p of each test, (n,). What is nan was not tested: it stays nan, and does not count.

    Returns
    -------
    numpy.ndarray
        Corrected p in the order given, float64 (n,): never below `p`, and at most 1.

    References
    ----------
    Holm, Scand. J. Statist. 6, 65 (1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    try:
        array = np.asarray(p)
    except ValueError:  # rows of unequal length
        raise UsageError("p must be an array of shape (n,), not rows of unequal length") from None
    if array.ndim != 1:
        raise UsageError(f"p must be an array of shape (n,), not {array.shape}")
    tested = ~np.isnan(array) if array.dtype.kind == "f" else np.ones(array.shape, dtype=np.bool_)
    numbers = as_numbers("p", array if tested.all() else np.where(tested, array, 0))
    if numbers.min() < 0 or numbers.max() > 1:
        raise UsageError(f"p must lie between 0 and 1, not at {numbers.min():g} to {numbers.max():g}")
    ascending = np.flatnonzero(tested)[np.argsort(numbers[tested])]
    steps = numbers[ascending] * np.arange(len(ascending), 0, -1)
    corrected = np.full(numbers.shape, np.nan)
    corrected[ascending] = np.minimum(1, np.maximum.accumulate(steps))
    return corrected


def _moments(group: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean over runs and its squared standard error, nan for a single run.

    For equal values these are exactly the value and 0, which numpy may miss by rounding.
    """
    equal = (group == group[0]).all(axis=0)
    mean = np.asarray(np.where(equal, group[0], group.mean(axis=0)))
    if len(group) == 1:
        return mean, np.full(group.shape[1:], np.nan)
    return mean, np.asarray(np.where(equal, 0, group.var(axis=0, ddof=1) / len(group)))
