"""`Estimate`: a value with the interval that it lies in, what that is made of, and whether there was enough for one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Estimate", "FloatArray", "in_figures", "n_eff_text"]

FloatArray = npt.NDArray[np.float64]
#: What is estimated: a number, or the numbers of a curve.
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

    @property
    def half_width(self) -> V:
        """Half the interval's width, of the type and shape of `value`."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        if np.ndim(self.value):
            value = np.asarray(self.value)
            shown = f"curve of {' x '.join(map(str, value.shape))} values"
        else:
            shown = in_figures(float(self.value), float(self.low), float(self.high), self.converged)
        if not self.converged:
            return f"{shown}, not converged ({n_eff_text(self.n_eff)})"
        return f"{shown} ({100 * self.level:g} %, {self._basis()})"

    def _basis(self) -> str:
        """Return what the interval is made of."""
        return f"{self.blocks} blocks, {n_eff_text(self.n_eff)}" if self.blocks else self.method


def unconverged(value: Any) -> Any:
    """Return nan in the type and shape of a value."""
    return np.full(np.shape(value), np.nan) if np.ndim(value) else math.nan


def n_eff_text(n_eff: float) -> str:
    """Return a number of independent values, in figures that it can be known to."""
    return f"N_eff {n_eff:.0f}" if n_eff >= 10 else f"N_eff {n_eff:.1f}"


def in_figures(value: float, low: float, high: float, interval: bool) -> str:
    """Return value and limits in as many decimals as the interval's width leaves sense in."""
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
