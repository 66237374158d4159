"""An analysis's plot() on a figure of its own: `figure()`; on axes of somebody else's: `draw()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from himach.analysis import Analysis
from himach.output.cells import LongCells
from himach.output.figures.envelope import thinned
from himach.output.figures.legend import draw_legend
from himach.output.figures.picture import canvas, encoded
from himach.output.figures.series import POINTS_PER_INCH, draw_series
from himach.output.figures.style import drawn_in_style
from himach.output.parts import parts
from himach.output.table import Table

__all__ = ["draw", "drawable", "drawn", "figure", "numeric", "plot_table"]

LINE = 10  # points, of a line of a legend
PANEL = 0.72  # of a plot's height, for each of the panels that stand in its place


def figure(plots: Sequence[tuple[str, Analysis, Any]]) -> Any:
    """Draw plots below one another on a figure that shows itself in a notebook.

    Title, analysis and outcome of each are given; exceptions of plot() pass through. A plot that has put panels into
    the place of its axes (``axes.get_subplotspec().subgridspec(...)``) gets a height for each row of them, and a legend
    below its axes one for each line.
    """
    with drawn_in_style():
        picture = canvas()
        rows = picture.subplots(len(plots), squeeze=False)[:, 0]
        for axes, (title, analysis, outcome) in zip(rows, plots, strict=True):
            draw(analysis, outcome, axes, title)
        heights = [_height(axes) for axes in rows]
        rows[0].get_gridspec().set_height_ratios(heights)
        width, height = picture.get_size_inches()
        picture.set_size_inches(width, height * sum(heights))
    return picture


def drawn(plot: tuple[str, Analysis, Any], formats: Sequence[str]) -> list[bytes]:
    """Return a plot as a file of each of the formats."""
    return encoded(figure([plot]), formats)


def _height(axes: Any) -> float:
    """Return the height of a plot, of which one without panels has 1."""
    inside = _panels(axes)
    grids = [one.get_subplotspec().get_gridspec() for one in inside]
    panels = max((PANEL * sum(grid.get_height_ratios() or [1] * grid.nrows) for grid in grids), default=1)
    points = sum(LINE * _lines_below(one) for one in [axes, *inside])
    return float(panels + points / POINTS_PER_INCH / axes.figure.get_size_inches()[1])


def _panels(axes: Any) -> list[Any]:
    """Return the axes that stand in a part of the place of others."""
    place, others = axes.get_subplotspec(), [(one, one.get_subplotspec()) for one in axes.figure.axes]
    inside = [(one, spec) for one, spec in others if place is not None and spec is not None and spec != place]
    return [one for one, spec in inside if spec.get_topmost_subplotspec() == place]


def _lines_below(axes: Any) -> int:
    """Return how many lines a legend has that stands below its axes."""
    legend = axes.get_legend()
    if legend is None or legend.get_bbox_to_anchor().y0 >= axes.bbox.y0:
        return 0
    return -(-len(legend.get_texts()) // int(legend._ncols))


def draw(analysis: Analysis, outcome: Any, axes: Any, title: str) -> None:
    """Draw an outcome on axes; what plot() leaves open (title) is filled in. Without plot(): its first table."""
    if analysis.defines("plot"):
        analysis.plot(thinned(outcome), axes)
    elif (table := drawable(thinned(outcome))) is not None:
        plot_table(table, axes)
    shown = [one for one in [axes, *_panels(axes)] if one.get_visible()]
    if not any(one.get_title(loc) for one in shown for loc in ("center", "left", "right")):
        shown[0].set_title(title)


def drawable(outcome: Any) -> Table | None:
    """Return the first table of an outcome that `plot_table` can draw; None if there is none."""
    tables = [thing for _, thing in parts(outcome, "") if isinstance(thing, Table)]
    return next((table for table in tables if table.rows and len(numeric(table)) > 1), None)


def plot_table(table: Table, axes: Any) -> None:
    """Draw the columns of numbers of a table over the first of them, with their units at the axes."""
    columns = numeric(table)
    x, *ys = columns
    for y in ys:
        draw_series(axes, table[x], table[y], label=y if len(ys) > 1 else "")
    axes.set_xlabel(table.label(x))
    units = {table.units.get(y, "") for y in ys}
    axes.set_ylabel(table.label(ys[0]) if len(ys) == 1 else units.pop() if len(units) == 1 else "")
    draw_legend(axes)
    axes.grid(alpha=0.3)


def numeric(table: Table) -> list[str]:
    """Return the names of the columns that can be drawn: real numbers."""
    return [
        name
        for name, cells in table.items()
        if isinstance(cells, np.ndarray | LongCells) and cells.dtype is not None and cells.dtype.kind in "iuf"
    ]
