"""Lines of values in order that stay lines, however many there are: `draw_series()`; and axes of times."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["column_means", "columns_of", "draw_series", "time_axis"]

POINTS_PER_INCH = 72
#: Of that many values in a column one over the other, lines from one to the next become a blot.
MOST_IN_COLUMN = 2


def time_axis(times: npt.ArrayLike, name: str) -> tuple[float, str]:
    """Return by what times in ps are multiplied for an axis, and its label: in ns where they reach 10,000 ps."""
    return (1e-3, f"{name} / ns") if np.max(np.abs(times), initial=0) >= 10_000 else (1.0, f"{name} / ps")


def draw_series(axes: Any, x: npt.ArrayLike, y: npt.ArrayLike, label: str = "", **look: Any) -> Any:
    """Draw values over ascending places; where there are more than a line can show, their mean, from least to most.

    A line is as broad as many places: of more than two values in its breadth the mean is drawn, and a band from the
    least of them to the most, which the legend (`draw_legend`) names.

    Parameters
    ----------
    axes
        Matplotlib axes.
    x, y
        Places and values, real (n,); values that are no numbers leave gaps.
    label
        For the legend.
    **look
        As `matplotlib.axes.Axes.plot` takes it.

    Returns
    -------
    matplotlib.lines.Line2D
        The line.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    count = _columns(axes, x, look.get("linewidth", look.get("lw")))
    if count is None:
        (line,) = axes.plot(x, y, label=label, **look)
        return line
    middle, mean, low, high = columns_of(x, y, count)
    (line,) = axes.plot(middle, mean, label=label, **look)
    each = round(len(x) / len(middle))
    axes.fill_between(
        middle, low, high, color=line.get_color(), alpha=0.3, linewidth=0, zorder=line.get_zorder() - 0.1,
        label=f"line: mean, band: range of {each:,} frames",
    )  # fmt: skip
    return line


def column_means(axes: Any, x: npt.ArrayLike, *ys: npt.ArrayLike, width: float | None = None) -> tuple[Any, ...]:
    """Return places and values as lines of that width show them: as they are, or of more than that their means.

    Returns
    -------
    tuple of ndarray
        Places, then one for each of `ys`.
    """
    x, *some = (np.asarray(each, np.float64) for each in (x, *ys))
    count = _columns(axes, x, width)
    if count is None:
        return x, *some
    found = [columns_of(x, y, count) for y in some]
    return found[0][0], *(mean for _, mean, _, _ in found)


def columns_of(x: Any, y: Any, count: int) -> tuple[Any, Any, Any, Any]:
    """Return the middle of each of so many equally broad columns, and the mean, least and most of the values in it.

    Columns without values are left out; what is no number counts for nothing, and of nothing else all three are nan.
    """
    column = np.minimum(((x - x[0]) * (count / (x[-1] - x[0]))).astype(np.int64), count - 1)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    known = np.isfinite(y)
    number = np.add.reduceat(known.astype(np.int64), first)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(np.where(known, y, 0), first) / number
    low = np.minimum.reduceat(np.where(known, y, np.inf), first)
    high = np.maximum.reduceat(np.where(known, y, -np.inf), first)
    ends = np.linspace(x[0], x[-1], count + 1)
    middle = (ends[:-1] + ends[1:])[column[first]] / 2
    return middle, mean, np.where(number, low, np.nan), np.where(number, high, np.nan)


def _columns(axes: Any, x: Any, width: float | None) -> int | None:
    """Return in how many columns ascending places are to be seen by a line of that width; None where all can be."""
    from matplotlib import rcParams

    count = int(axes.figure.get_size_inches()[0] * POINTS_PER_INCH / (width or rcParams["lines.linewidth"]))
    return count if len(x) > MOST_IN_COLUMN * count and (np.diff(x) > 0).all() else None
