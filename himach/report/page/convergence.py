"""Whether the mean of a column in time can be trusted: `converge()` looks at it from several sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.uncertainty import Estimate, equilibration, halves, mean
from himach.uncertainty.block_mean import FEWEST, block_error

__all__ = ["Convergence", "converge"]

Floats = npt.NDArray[np.float64]

#: Points of a running mean that are kept.
POINTS = 60
#: Running means begin with one part in so many: those of fewer values would hide the others.
BEGINNING = 30
#: From so many independent values on, each block of the fewest holds as many as it should.
ENOUGH = 32


@dataclass(frozen=True, eq=False)
class Convergence:
    """A mean, and what tells whether it holds.

    Attributes
    ----------
    estimate
        The mean with its interval.
    values
        How many values it is of.
    start
        Index of the first value of the equilibrated part, of all values.
    later
        Mean of that part.
    forward, backward
        Running means from the beginning and from the end, float64 (n,): of more and more of the values, at
        `fractions` of them.
    fractions
        float64 (n,), up to 1.
    halves
        How much the mean of the second half is above that of the first.
    every_second
        Mean of every second value.
    lengths, errors
        Lengths of blocks in values, and the standard errors of the mean that blocks of these lengths tell.
    """

    estimate: Estimate[float]
    values: int
    start: int
    later: float
    forward: Floats
    backward: Floats
    fractions: Floats
    halves: Estimate[float]
    every_second: float
    lengths: npt.NDArray[np.int64]
    errors: Floats

    @property
    def halves_agree(self) -> bool | None:
        """Whether the halves may have one mean; None: one of them has no interval."""
        return self.halves.low <= 0 <= self.halves.high if self.halves.converged else None

    @property
    def stride_agrees(self) -> bool | None:
        """Whether every second value gives a mean within the interval; None: there is no interval."""
        return self._within(self.every_second)

    @property
    def start_agrees(self) -> bool | None:
        """Whether the mean of the equilibrated part lies within the interval; None: there is no interval."""
        return self._within(self.later)

    @property
    def doubts(self) -> list[str]:
        """What speaks against the mean, in words."""
        estimate, n_eff = self.estimate, self.estimate.n_eff
        if not estimate.converged:
            return [estimate.method.removeprefix("none: ")]
        if estimate.low == estimate.high:
            return ["never changed, which tells nothing of how sure it is"]
        said = []
        if n_eff < ENOUGH:
            said.append(f"few independent values ({n_eff:.3g}; {ENOUGH} fill the blocks)")
        if self.halves_agree is False:
            said.append("the second half has another mean than the first")
        if self.stride_agrees is False:
            said.append("every second frame gives another mean")
        if self.start_agrees is False:
            said.append("the equilibrated part has another mean")
        if self.start > self.values / 2:
            said.append("equilibrated in the second half only")
        return said

    def _within(self, value: float) -> bool | None:
        estimate = self.estimate
        return estimate.low <= value <= estimate.high if estimate.converged else None


def converge(values: npt.ArrayLike, level: float = 0.95, first: int = 0) -> Convergence:
    """Look at the mean of values in time order, shape (n,), from index `first` on.

    Raises
    ------
    UsageError
        If there are no values, or if they are nan or infinite.
    """
    every = np.asarray(values, np.float64)
    used = every[first:]
    estimate = mean(used, level)
    n = len(used)
    start = equilibration(every)
    counts = np.unique(np.linspace(max(1, n // BEGINNING), n, min(n, POINTS)).round().astype(np.int64))
    lengths, errors = _block_curve(used)
    return Convergence(
        estimate=estimate,
        values=len(every),
        start=start,
        later=float(every[start:].mean()),
        forward=_running(used)[counts - 1],
        backward=_running(used[::-1])[counts - 1],
        fractions=counts / n,
        halves=halves(used, level),
        every_second=float(used[::2].mean()),
        lengths=lengths,
        errors=errors,
    )


def _running(values: Floats) -> Floats:
    return np.asarray(np.cumsum(values) / np.arange(1, len(values) + 1), np.float64)


def _block_curve(values: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return lengths of blocks, each about 1.5 times the one before, and the standard errors that they tell."""
    longest = len(values) // FEWEST
    lengths, length = [], 1.0
    while round(length) <= longest:
        lengths.append(round(length))
        length = max(length * 1.5, length + 1)
    errors = [block_error(values, len(values) // length) for length in lengths]
    return np.array(lengths, np.int64), np.array(errors, np.float64)
