"""Independent runs of the same system, with an interval over them: `replicas()`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.uncertainty.arguments import as_level, as_numbers, not_negative
from himach.uncertainty.estimate import Estimate, FloatArray, unconverged
from himach.uncertainty.quantiles import student

__all__ = ["Replicas", "replicas"]

V = TypeVar("V", float, FloatArray)


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

    Raises
    ------
    UsageError
        If there is no run, if a value is nan or infinite, or if shapes do not fit.
    """
    level = as_level(level)
    given = list(means) if isinstance(means, Sequence) else []
    if any(isinstance(each, Estimate) for each in given):
        if errors is not None or not all(isinstance(each, Estimate) for each in given):
            raise UsageError("means must be numbers or Estimates, not both; Estimates bring their errors with them")
        values = as_numbers("means", [each.value for each in given])
        own = np.array([each.error for each in given], dtype=np.float64)
    else:
        values = as_numbers("means", np.asarray(means))
        own = np.full(values.shape, np.nan) if errors is None else as_numbers("errors", errors)
    if values.ndim == 0:
        raise UsageError("means must have the shape (n,) or (n, ...), a value for each run, not a single number")
    if own.shape != values.shape:
        raise UsageError(f"errors must have the shape of means, {values.shape}, not {own.shape}")
    not_negative("errors", np.nan_to_num(own))
    n = len(values)
    value = _plain(values.mean(axis=0))
    between = _plain(values.std(axis=0, ddof=1)) if n > 1 else unconverged(value)
    t = student(level, n - 1) if n > 1 else math.nan
    error = between / math.sqrt(n)
    return Replicas(
        value=value,
        low=value - t * error,
        high=value + t * error,
        level=level,
        error=error,
        n_eff=float(n),
        blocks=n,
        method=_method(n, t),
        converged=n > 1,
        within=_plain(np.sqrt((own**2).mean(axis=0))),
        between=between,
    )


def _method(n: int, t: float) -> str:
    if n == 1:
        return "none: a single run does not tell how runs differ"
    wide = f": t = {t:.1f}, a third run would make it much narrower" if n == 2 else ""
    return f"Student's t over {n} runs{wide}"


def _plain(value: Any) -> Any:
    """Return an array of no dimension as a float."""
    return value if np.ndim(value) else float(value)
