"""Drawing of time series, `draw_series()`, axes of times, `time_axis()`, and legends, `draw_legend()`."""

from typing import Any

import numpy as np
import numpy.typing as npt

POINTS_PER_INCH = 72
#: With more values than these per column as wide as the line, lines become a blot.
MOST_IN_COLUMN = 2
#: Origin of a legend below axes, in points from their lower left corner: under the labels of both axes.
BELOW = -34, -26


def time_axis(times: npt.ArrayLike, name: str) -> tuple[float, str]:
    """Return the factor of times in ps on an axis, and its label; the unit is ns from 10,000 ps on."""
    return (1e-3, f"{name} / ns") if np.max(np.abs(times), initial=0) >= 10_000 else (1.0, f"{name} / ps")


def draw_series(axes: Any, x: npt.ArrayLike, y: npt.ArrayLike, label: str = "", **style: Any) -> Any:
    """Draw values (n,) over ascending places (n,) as `matplotlib.axes.Axes.plot` does; return the line.

    Values that are not finite leave gaps. If more than two values fall within a line's width, their mean is drawn, and
    a band from least to most, which the legend (`draw_legend`) names.
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
    """Return places and values as lines of that width show them: unchanged, or as means per column."""
    x, *series = (np.asarray(values, np.float64) for values in (x, *ys))
    count = _columns(axes, x, width)
    if count is None:
        return x, *series
    binned = [bin_columns(x, y, count) for y in series]
    return binned[0][0], *(mean for _, mean, _, _ in binned)


def bin_columns(x: Any, y: Any, count: int) -> tuple[Any, Any, Any, Any]:
    """Return the middle of each of `count` equally wide columns, and the mean, least and most of its values.

    Empty columns are omitted. Values that are not finite are ignored; columns of only these have nan for all three.
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
    """Return the number of columns for ascending places and a line of that width; None if it can show all places."""
    from matplotlib import rcParams

    count = int(axes.figure.get_size_inches()[0] * POINTS_PER_INCH / (width or rcParams["lines.linewidth"]))
    return count if len(x) > MOST_IN_COLUMN * count and (np.diff(x) > 0).all() else None


def draw_legend(axes: Any, below: bool = False, **style: Any) -> None:
    """Draw the legend of axes with one entry for each text: a line and its band share one.

    If `below`, it is below the label of the x axis, for texts that would cover the plot; not in a figure without a
    layout, which would make room for it. `style` is as `matplotlib.axes.Axes.legend` takes it.
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
    }  # of one kind: side by side, not overlaid
    if below and axes.figure.get_layout_engine() is not None:
        x, y = (points / POINTS_PER_INCH for points in BELOW)
        corner = axes.transAxes + ScaledTranslation(x, y, axes.figure.dpi_scale_trans)
        style = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": corner, "frameon": False, **style}
    axes.legend(handles, list(entries), handler_map=handlers, **style)
