"""`Estimate`, a value with its interval; shared checks, distributions and number formats of all estimators."""

import math
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, ndtri, stdtrit

from himach.errors import UsageError

FloatArray = npt.NDArray[np.float64]
#: Type of an estimate: a number, or the numbers of a curve.
V = TypeVar("V", float, FloatArray)


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate(Generic[V]):
    """A value and its interval.

    Attributes
    ----------
    value
        What was estimated: a float, or a float64 array for a curve. Its unit is that of the values given.
    low, high
        Limits of the interval, of the type and shape of `value`; nan where there is none.
    level
        Probability with which such intervals contain the true value.
    error
        Standard error of `value`, of its type and shape; nan where the interval is made without one.
    n_eff
        How many independent values would tell as much.
    inefficiency
        How many values are worth one independent value, at least 1.
    start
        Index of the first value that was used.
    blocks
        Number of blocks, or of runs, that the interval is made of; 0 where it is made without.
    method
        How the interval was made, in a few words.
    converged
        Whether there was enough for an interval.

    Examples
    --------
    >>> estimate = himach.uncertainty.count(4)
    >>> estimate.value, round(estimate.low, 2), round(estimate.high, 2)
    (4.0, 1.09, 10.24)
    """

    value: V
    low: V
    high: V
    level: float
    error: V
    n_eff: float
    inefficiency: float = 1.0
    start: int = 0
    blocks: int = 0
    method: str = ""
    converged: bool = True

    @classmethod
    def around(cls, value: Any, half: Any, *, error: Any, **fields: Any) -> Self:
        """Return the estimate whose limits are `half` below and above a value; arrays of no dimension become floats."""
        return cls.from_limits(value, value - half, value + half, error=error, **fields)

    @classmethod
    def from_limits(cls, value: Any, low: Any, high: Any, *, error: Any, **fields: Any) -> Self:
        """Return the estimate with these limits; arrays of no dimension become floats."""
        return cls(value=plain(value), low=plain(low), high=plain(high), error=plain(error), **fields)

    @property
    def half_width(self) -> V:
        """Half the interval's width, of the type and shape of `value`."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        if np.ndim(self.value):
            value = np.asarray(self.value)
            text = f"curve of {' x '.join(map(str, value.shape))} values"
        else:
            text = in_figures(float(self.value), float(self.low), float(self.high), self.converged)
        if not self.converged:
            return f"{text}, not converged ({n_eff_text(self.n_eff)})"
        return f"{text} ({100 * self.level:g} %, {self._basis()})"

    def _basis(self) -> str:
        """Return the basis of the interval."""
        return f"{self.blocks} blocks, {n_eff_text(self.n_eff)}" if self.blocks else self.method


def plain(value: Any) -> Any:
    """Convert an array of no dimension to a float."""
    return value if np.ndim(value) else float(value)


def unconverged(value: Any) -> Any:
    """Return nan in the type and shape of a value."""
    return np.full(np.shape(value), np.nan) if np.ndim(value) else math.nan


def n_eff_text(n_eff: float) -> str:
    """Format a number of independent values with the digits that can be known."""
    return f"N_eff {n_eff:.0f}" if n_eff >= 10 else f"N_eff {n_eff:.1f}"


def in_figures(value: float, low: float, high: float, interval: bool) -> str:
    """Format value and limits with the decimals that the interval's width justifies."""
    if not interval or math.isnan(low):
        return f"{value:.6g}"
    widest = max((abs(x) for x in (value, low, high) if math.isfinite(x)), default=0.0)
    half = (high - low) / 2
    if not (math.isfinite(half) and half > 0):
        return f"{value:.6g} [{low:.6g}, {high:.6g}]"
    exponent = math.floor(math.log10(half))
    decimals = -exponent + (half / 10.0**exponent < 1.95)  # 2.751 +- .015, 2.75 +- .02
    if not 1e-4 <= widest < 1e7:
        digits = max(0, math.floor(math.log10(widest)) + decimals)
        return f"{value:z.{digits}e} [{low:z.{digits}e}, {high:z.{digits}e}]"
    digits = max(0, decimals)
    return f"{value:z.{digits}f} [{low:z.{digits}f}, {high:z.{digits}f}]"


def as_level(level: float) -> float:
    """Check a level of confidence, which lies between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.floating) or not 0 < level < 1:
        raise UsageError(f"level must be a number between 0 and 1, such as 0.95, not {level!r}")
    return float(level)


def as_numbers(name: str, values: npt.ArrayLike) -> FloatArray:
    """Convert finite real numbers to float64, of any shape but empty."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of unequal length
        raise UsageError(f"{name} must be an array of numbers, not rows of unequal length") from None
    if array.size == 0:
        raise UsageError(f"{name} is empty")
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{name} must be real numbers, not {array.dtype}")
    array = array.astype(np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), array.shape)
        where = f" at index {', '.join(str(int(i)) for i in place)}" if place else ""
        raise UsageError(
            f"{name} has {int(bad.sum())} values that are nan or infinite, the first{where}; leave them out"
        )
    return array


def as_series(name: str, values: npt.ArrayLike) -> FloatArray:
    """Convert values in time order to float64 (n,)."""
    array = as_numbers(name, values)
    if array.ndim != 1:
        raise UsageError(f"{name} must be an array of shape (n,), in time order, not {array.shape}")
    return array


def as_runs(name: str, values: npt.ArrayLike) -> FloatArray:
    """Convert the values of independent runs to float64, (n,) or (n, ...)."""
    array = as_numbers(name, values)
    if array.ndim == 0:
        raise UsageError(f"{name} must have the shape (n,) or (n, ...), a value for each run, not a single number")
    return array


def as_counts(name: str, values: npt.ArrayLike, things: str = "events") -> FloatArray:
    """Convert whole numbers from 0 to float64."""
    array = as_numbers(name, values)
    not_negative(name, array)
    if (array != np.floor(array)).any():
        raise UsageError(f"{name} must be whole numbers of {things}")
    return array


def as_start(start: int, n: int) -> int:
    """Check the index of the first of n values to use."""
    if isinstance(start, bool) or not isinstance(start, int | np.integer) or not 0 <= start < n:
        raise UsageError(f"start must be an index from 0 to {n - 1}, not {start!r}")
    return int(start)


def not_negative(name: str, array: npt.NDArray[Any]) -> None:
    """Raise UsageError for negative numbers."""
    if array.min() < 0:
        raise UsageError(f"{name} cannot be negative, as {array.min():g} is")


def student(level: float, degrees: npt.ArrayLike) -> Any:
    """Return t such that Student's t lies between -t and t with probability `level`; degrees need not be whole."""
    return plain(-stdtrit(degrees, (1 - level) / 2))


def welch_degrees(first: npt.ArrayLike, n_first: int, second: npt.ArrayLike, n_second: int) -> Any:
    """Return the degrees of freedom of a difference of means from squared standard errors (Welch, Satterthwaite)."""
    first, second = np.asarray(first), np.asarray(second)
    both = first + second
    # Shares of the whole, as the fourth power of a small error may be too small for a float.
    return 1 / ((first / both) ** 2 / (n_first - 1) + (second / both) ** 2 / (n_second - 1))


def normal(level: float) -> float:
    """Return z such that a standard normal deviate lies between -z and z with probability `level`."""
    return float(-ndtri((1 - level) / 2))


def gamma(shape: npt.ArrayLike, below: float) -> FloatArray:
    """Return the quantile of the gamma distribution of scale 1; 0 where its shape is 0."""
    shapes = np.asarray(shape, dtype=np.float64)
    quantiles = gammaincinv(np.where(shapes > 0, shapes, 1), below)
    return np.asarray(np.where(shapes > 0, quantiles, 0), dtype=np.float64)
