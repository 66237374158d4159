"""Checks of the mean of a time series: `assess_convergence()` applies several; `small_plot()` draws curves."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from himach.uncertainty import Estimate, equilibration, halves, mean
from himach.uncertainty.block_mean import FEWEST, block_error

Floats: TypeAlias = npt.NDArray[np.float64]
#: An objection to a result: the name of a phrase of ``prose.j2``, or text; and values in that phrase.
Doubt: TypeAlias = tuple[str, Mapping[str, Any]]

#: Points of a running mean, and the part of values in its first: means of fewer values would hide the others.
POINTS, BEGINNING = 60, 30
#: Independent values needed for each of the fewest blocks to hold enough.
ENOUGH = 32
#: Size of a small plot and the margin around its curves, in pixels.
WIDTH, HEIGHT, MARGIN = 150, 44, 3


@dataclass(frozen=True, eq=False)
class Convergence:
    """A mean and checks of its convergence."""

    estimate: Estimate[float]
    start: int
    running: tuple[Floats, Floats]
    fractions: Floats
    halves: Estimate[float]
    every_second: float
    agrees: Mapping[str, bool | None]
    lengths: npt.NDArray[np.int64]
    errors: Floats
    doubts: list[Doubt]


def assess_convergence(values: npt.ArrayLike, level: float = 0.95, first: int = 0) -> Convergence:
    """Assess the mean of values in time order, shape (n,), from index `first` on."""
    series = np.asarray(values, np.float64)
    used = series[first:]
    estimate, n, start, difference = mean(used, level), len(used), equilibration(series), halves(used, level)
    stride_mean = float(used[::2].mean())
    agrees = {
        "halves": _is_within(difference, 0.0),
        "stride": _is_within(estimate, stride_mean),
        "start": _is_within(estimate, float(series[start:].mean())),
    }
    counts = np.unique(np.linspace(max(1, n // BEGINNING), n, min(n, POINTS)).round().astype(np.int64))
    lengths, length = [], 1.0
    while round(length) <= n // FEWEST:
        lengths.append(round(length))
        length = max(length * 1.5, length + 1)
    flags = {"few": estimate.n_eff < ENOUGH, **{name: agreement is False for name, agreement in agrees.items()}}
    flags["late"] = start > len(series) / 2
    if not estimate.converged:
        flags = {estimate.method.removeprefix("none: "): True}
    elif estimate.low == estimate.high:
        flags = {"constant": True}
    return Convergence(
        estimate=estimate,
        start=start,
        running=(_running_mean(used)[counts - 1], _running_mean(used[::-1])[counts - 1]),
        fractions=counts / n,
        halves=difference,
        every_second=stride_mean,
        agrees=agrees,
        lengths=np.array(lengths, np.int64),
        errors=np.array([block_error(used, n // size) for size in lengths], np.float64),
        doubts=[(name, {"n_eff": estimate.n_eff, "enough": ENOUGH}) for name, applies in flags.items() if applies],
    )


def _is_within(estimate: Estimate[float], value: float) -> bool | None:
    return estimate.low <= value <= estimate.high if estimate.converged else None


def _running_mean(values: Floats) -> Floats:
    return np.asarray(np.cumsum(values) / np.arange(1, len(values) + 1), np.float64)


def small_plot(
    label: str, x: npt.ArrayLike, *curves: npt.ArrayLike, band: tuple[float, float] | None = None, zero: bool = False
) -> dict[str, Any]:
    """Return curves over common places for the template to draw; points that are not finite are omitted."""
    points = np.array([[x, y] for y in curves], np.float64)  # (curve, axis, n)
    finite = [curve[:, np.isfinite(curve).all(axis=0)] for curve in points]
    xs, ys = np.concatenate(finite, axis=1)
    limits = [limit for limit in band or () if math.isfinite(limit)]
    if not len(xs):
        return {}
    scale_x, scale_y = _scale(xs, WIDTH), _scale(np.concatenate([ys, limits, [0.0] * zero]), HEIGHT)
    paths = [[f"{scale_x(a):.1f},{HEIGHT - scale_y(b):.1f}" for a, b in curve.T] for curve in finite]
    edges = sorted(HEIGHT - scale_y(limit) for limit in limits)
    shade = (f"{edges[0]:.1f}", f"{edges[1] - edges[0]:.1f}") if len(edges) == 2 else None
    return {"label": label, "curves": paths, "band": shade, "width": WIDTH, "height": HEIGHT}


def _scale(values: Floats, size: int) -> Callable[[float], float]:
    """Return a function from values to positions along an axis of `size` pixels."""
    low, high = float(values.min()), float(values.max())
    span = high / 2 - low / 2  # halves, as the range of two floats may overflow
    return lambda value: MARGIN + ((float(value) / 2 - low / 2) / span if span > 0 else 0.5) * (size - 2 * MARGIN)
