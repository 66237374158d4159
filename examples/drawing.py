"""What plots of the built-in analyses share: panels, axes of times, bands of intervals, means, figures in words."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import himach
from himach.output.figures.time_series import draw_legend, draw_series, time_axis
from himach.uncertainty.estimate import in_figures

__all__ = ["draw_band", "draw_legend", "draw_mean", "draw_series", "in_words", "panels", "time_axis"]

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def panels(axes: Any, heights: Sequence[float]) -> list[Any]:
    """Replace axes by axes below one another, with their title; a figure of himach's gets higher.

    Parameters
    ----------
    axes
        Matplotlib axes.
    heights
        Heights of the panels; 1 is that of a low one.
    """
    spec = axes.get_subplotspec()
    if spec is None:
        axes.set_axis_off()
        unit = 1 / (sum(heights) + 0.4 * (len(heights) - 1))
        bottoms = [1 - unit * (sum(heights[: i + 1]) + 0.4 * i) for i in range(len(heights))]
        return [axes.inset_axes([0, bottom, 1, unit * height]) for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_visible(False)
    space = None if axes.figure.get_layout_engine() else 0.6
    grid = spec.subgridspec(len(heights), 1, height_ratios=heights, hspace=space)
    axes_list = [axes.figure.add_subplot(cell) for cell in grid]
    axes_list[0].set_title(axes.get_title())
    return axes_list


def draw_band(axes: Any, x: npt.ArrayLike, table: Any, column: str, color: Any) -> None:
    """Draw the limits of a column, if the table has them, and describe them for the legend."""
    if f"{column}_low" not in table:
        return
    is_nonzero = np.asarray(table[column]) != 0  # without events limits are far off, or both 0
    low, high = np.where(is_nonzero, [table[f"{column}_low"], table[f"{column}_high"]], np.nan)
    if not np.isfinite(low).any():
        axes.plot([], [], " ", label="no interval: too few independent frames")
        return
    axes.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0, label=f"{100 * table.level:g} % interval")


def draw_mean(axes: Any, table: Any, column: str) -> None:
    """Draw the mean of a column in time and its interval, if the run computed one, with labels for the legend."""
    mean = table.means.get(column) if isinstance(table, himach.Table) else None
    if mean is None:
        return
    unit = f" {table.units[column]}" if column in table.units else ""
    text = f"mean {mean.value:.3g}{unit}, not converged"
    if mean.converged:
        text = f"mean {in_figures(mean.value, mean.low, mean.high, True)}{unit} ({100 * mean.level:g} %)"
        axes.axhspan(mean.low, mean.high, color="black", alpha=0.15, linewidth=0, label=text)
    axes.axhline(mean.value, color="black", lw=0.8, ls="--", label=text)
    low, high = axes.get_ylim()
    axes.set_ylim(top=high + 0.2 * (high - low))  # room for the legend


def in_words(table: Any, column: str, name: str, row: int = 0) -> str:
    """Format a cell with its unit and limits, if the table has them, for a legend."""
    unit = f" {table.units[column]}" if column in table.units else ""
    cells = [float(table[key][row]) for key in (column, f"{column}_low", f"{column}_high") if key in table]
    exponent = math.floor(math.log10(abs(cells[0]))) if cells[0] and math.isfinite(cells[0]) else 0
    if not -4 < exponent < 6:
        unit = f" \N{MULTIPLICATION SIGN} 10{str(exponent).translate(SUPERSCRIPTS)}{unit}"
        cells = [cell * 10.0**-exponent for cell in cells]
    if len(cells) == 1:
        return f"{name} = {cells[0]:.3g}{unit}"
    if not math.isfinite(cells[1]):
        return f"{name} = {cells[0]:.3g}{unit} (no interval)"
    return f"{name} = {in_figures(cells[0], cells[1], cells[2], True)}{unit} ({100 * table.level:g} %)"
