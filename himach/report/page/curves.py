"""Small curves as inline SVG, drawn with the colours of the page: `small_plot()`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.report.markup import Html, element, text

__all__ = ["Curve", "small_plot"]

WIDTH, HEIGHT, MARGIN = 150, 44, 3


class Curve(NamedTuple):
    """A curve of a small plot: places, values, and the class of its line in the style sheet."""

    x: npt.ArrayLike
    y: npt.ArrayLike
    kind: str = ""


def small_plot(said: str, curves: Sequence[Curve], band: tuple[float, float] | None = None, zero: bool = False) -> Html:
    """Return curves in one picture, each with a dot at its end, over a band of values.

    Parameters
    ----------
    said
        What the picture shows, for those who do not see it.
    curves
        At least one; values that are not finite are left out.
    band
        Lower and upper limit of an interval; None, or nan: there is none.
    zero
        Whether the lower end of the picture is 0.
    """
    points = [_finite(curve) for curve in curves]
    xs = np.concatenate([x for x, _ in points])
    ys = np.concatenate([y for _, y in points])
    limits = [limit for limit in band or () if math.isfinite(limit)]
    if not len(xs):
        return text("\N{EN DASH}")
    across = _scale(xs, WIDTH, upward=False)
    up = _scale(np.concatenate([ys, limits, np.zeros(int(zero))]), HEIGHT, upward=True)
    drawn = []
    if len(limits) == 2:
        low, high = up(min(limits)), up(max(limits))
        drawn.append(element("rect", class_="band", x=0, width=WIDTH, y=_figure(high), height=_figure(low - high)))
    for curve, (x, y) in zip(curves, points, strict=True):
        places = [(across(float(a)), up(float(b))) for a, b in zip(x, y, strict=True)]
        line = " ".join(f"{_figure(a)},{_figure(b)}" for a, b in places)
        drawn.append(element("polyline", class_=curve.kind or None, points=line))
        if places:
            at = places[-1]
            drawn.append(element("circle", class_=curve.kind or None, cx=_figure(at[0]), cy=_figure(at[1]), r=1.8))
    return element(
        "svg", *drawn, class_="small", role="img", aria_label=said, viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH,
        height=HEIGHT,
    )  # fmt: skip


def _finite(curve: Curve) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    x, y = np.asarray(curve.x, np.float64), np.asarray(curve.y, np.float64)
    good = np.isfinite(x) & np.isfinite(y)
    return x[good], y[good]


def _scale(values: npt.NDArray[np.float64], size: int, upward: bool):  # type: ignore[no-untyped-def]
    """Return what turns a value into a place along an axis of so many units."""
    low, high = float(values.min()), float(values.max())
    # By halves, as the range of two floats may be none.
    span = high / 2 - low / 2

    def place(value: float) -> float:
        part = (value / 2 - low / 2) / span if span > 0 else 0.5
        return MARGIN + (1 - part if upward else part) * (size - 2 * MARGIN)

    return place


def _figure(place: float) -> str:
    return f"{place:.1f}"
