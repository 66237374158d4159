"""Lines of values in order that stay lines, `draw_series()`, axes of times, and legends, `draw_legend()`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

POINTS_PER_INCH = 72
#: Of that many values in a column one over the other, lines from one to the next become a blot.
MOST_IN_COLUMN = 2
#: Where a legend below axes begins, in points from the axes' lower left corner: under the labels of both axes.
BELOW = -34, -26


def time_axis(times: npt.ArrayLike, name: str) -> tuple[float, str]:
    """Return by what times in ps are multiplied for an axis, and its label: in ns where they reach 10,000 ps."""
    return (1e-3, f"{name} / ns") if np.max(np.abs(times), initial=0) >= 10_000 else (1.0, f"{name} / ps")


def draw_series(axes: Any, x: npt.ArrayLike, y: npt.ArrayLike, label: str = "", **style: Any) -> Any:
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
    **style
        As `matplotlib.axes.Axes.plot` takes it.

    Returns
    -------
    matplotlib.lines.Line2D
        The line.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    count = _columns(axes, x, style.get("linewidth", style.get("lw")))
    if count is None:
        (line,) = axes.plot(x, y, label=label, **style)
        return line
    middle, mean, low, high = bin_columns(x, y, count)
    (line,) = axes.plot(middle, mean, label=label, **style)
    per_column = round(len(x) / len(middle))
    axes.fill_between(
        middle, low, high, color=line.get_color(), alpha=0.3, linewidth=0, zorder=line.get_zorder() - 0.1,
        label=f"line: mean, band: range of {per_column:,} frames",
    )  # fmt: skip
    return line


def column_means(axes: Any, x: npt.ArrayLike, *ys: npt.ArrayLike, width: float | None = None) -> tuple[Any, ...]:
    """Return places and values as lines of that width show them: as they are, or of more than that their means."""
    x, *series = (np.asarray(values, np.float64) for values in (x, *ys))
    count = _columns(axes, x, width)
    if count is None:
        return x, *series
    binned = [bin_columns(x, y, count) for y in series]
    return binned[0][0], *(mean for _, mean, _, _ in binned)


def bin_columns(x: Any, y: Any, count: int) -> tuple[Any, Any, Any, Any]:
    """Return the middle of each of so many equally broad columns, and the mean, least and most of the values in it.

    Columns without values are left out; what is no number counts for nothing, and of nothing else all three are nan.
    """
    column = np.minimum(((x - x[0]) * (count / (x[-1] - x[0]))).astype(np.int64), count - 1)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    finite = np.isfinite(y)
    counts = np.add.reduceat(finite.astype(np.int64), first)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(np.where(finite, y, 0), first) / counts
    low = np.minimum.reduceat(np.where(finite, y, np.inf), first)
    high = np.maximum.reduceat(np.where(finite, y, -np.inf), first)
    edges = np.linspace(x[0], x[-1], count + 1)
    middle = (edges[:-1] + edges[1:])[column[first]] / 2
    return middle, mean, np.where(counts, low, np.nan), np.where(counts, high, np.nan)


def _columns(axes: Any, x: Any, width: float | None) -> int | None:
    """Return in how many columns ascending places are to be seen by a line of that width; None where all can be."""
    from matplotlib import rcParams

    count = int(axes.figure.get_size_inches()[0] * POINTS_PER_INCH / (width or rcParams["lines.linewidth"]))
    return count if len(x) > MOST_IN_COLUMN * count and (np.diff(x) > 0).all() else None


def draw_legend(axes: Any, below: bool = False, **style: Any) -> None:
    """Draw the legend of axes, an entry for each text: what has the same text shares it, as a line and its band do.

    Parameters
    ----------
    axes
        Matplotlib axes; without a text to show they get no legend.
    below
        Whether it stands below the label of the x axis, for texts that would cover what is drawn; in a figure without a
        layout, which makes no room for it, it does not.
    **style
        As `matplotlib.axes.Axes.legend` takes it.
    """
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.transforms import ScaledTranslation

    entries: dict[str, list[Any]] = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        entries.setdefault(label, []).append(handle)
    if not entries:
        return
    handles = [tuple(group) if len(group) > 1 else group[0] for group in entries.values()]
    beside = [handle for handle in handles if isinstance(handle, tuple) and len(set(map(type, handle))) == 1]
    handlers = {
        handle: HandlerTuple(ndivide=None, pad=0.2) for handle in beside
    }  # of one kind: beside, not over each other
    if below and axes.figure.get_layout_engine() is not None:
        x, y = (points / POINTS_PER_INCH for points in BELOW)
        corner = axes.transAxes + ScaledTranslation(x, y, axes.figure.dpi_scale_trans)
        style = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": corner, "frameon": False, **style}
    axes.legend(handles, list(entries), handler_map=handlers, **style)
