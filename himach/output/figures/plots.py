"""Drawing of an analysis's plot(): on its own figure, `figure()`, or on given axes, `draw()`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from himach.analysis import TIME, Analysis
from himach.output.figures.picture import canvas, encode_figure, style_context
from himach.output.figures.time_series import POINTS_PER_INCH, draw_legend, draw_series
from himach.output.parts import parts
from himach.output.table import Table

LINE = 10  # points, height of a legend's line
BINS = 2000  # of the rows of a long table: more than a picture has columns
PANEL = 0.72  # height of each inner panel, relative to a plot


def figure(plots: Sequence[tuple[str, Analysis, Any]]) -> Any:
    """Draw plots below one another on a figure that notebooks display."""
    with style_context():
        picture = canvas()
        rows = picture.subplots(len(plots), squeeze=False)[:, 0]
        for axes, (title, analysis, outcome) in zip(rows, plots, strict=True):
            draw(analysis, outcome, axes, title)
        heights = [_height(axes) for axes in rows]
        rows[0].get_gridspec().set_height_ratios(heights)
        width, height = picture.get_size_inches()
        picture.set_size_inches(width, height * sum(heights))
    return picture


def render_plot(plot: tuple[str, Analysis, Any], formats: Sequence[str]) -> list[bytes]:
    """Draw a plot, and encode it in each format."""
    return encode_figure(figure([plot]), formats)


def _height(axes: Any) -> float:
    """Return the height of a plot, relative to one without panels."""
    inner = _panels(axes)
    grids = [panel.get_subplotspec().get_gridspec() for panel in inner]
    panels = max((PANEL * sum(grid.get_height_ratios() or [1] * grid.nrows) for grid in grids), default=1)
    points = sum(LINE * _lines_below(panel) for panel in [axes, *inner])
    return float(panels + points / POINTS_PER_INCH / axes.figure.get_size_inches()[1])


def _panels(axes: Any) -> list[Any]:
    """Return the axes nested in the subplot of these axes."""
    outer, subplots = axes.get_subplotspec(), [(panel, panel.get_subplotspec()) for panel in axes.figure.axes]
    inner = [(panel, spec) for panel, spec in subplots if outer is not None and spec is not None and spec != outer]
    return [panel for panel, spec in inner if spec.get_topmost_subplotspec() == outer]


def _lines_below(axes: Any) -> int:
    """Return the number of lines of a legend below its axes."""
    legend = axes.get_legend()
    if legend is None or legend.get_bbox_to_anchor().y0 >= axes.bbox.y0:
        return 0
    return -(-len(legend.get_texts()) // int(legend._ncols))


def draw(analysis: Analysis, outcome: Any, axes: Any, title: str) -> None:
    """Draw an outcome on axes: by plot(), else its first table; set a title if there is none."""
    if analysis.defines("plot"):
        analysis.plot(thin_tables(outcome), axes)
    elif (table := drawable(thin_tables(outcome))) is not None:
        plot_table(table, axes)
    visible = [panel for panel in [axes, *_panels(axes)] if panel.get_visible()]
    if not any(panel.get_title(loc) for panel in visible for loc in ("center", "left", "right")):
        visible[0].set_title(title)


def drawable(outcome: Any) -> Table | None:
    """Return the first table of an outcome that `plot_table` can draw; None if there is none."""
    tables = [thing for _, thing in parts(outcome, "") if isinstance(thing, Table)]
    return next((table for table in tables if table.rows and len(numeric(table)) > 1), None)


def plot_table(table: Table, axes: Any) -> None:
    """Draw the numeric columns of a table over the first of them, with units on the axes."""
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
    """Return the names of the columns of real numbers."""
    return [name for name, cells in table.items() if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf"]


def thin_tables(outcome: Any) -> Any:
    """Return an outcome with tables on the disk replaced by envelopes.

    Each bin of rows gives two: the least and the most of numeric columns. Times and other columns have the bin's first
    cell in both.
    """
    if isinstance(outcome, Table):
        return _envelope(outcome) if _is_long(outcome) else outcome
    if not isinstance(outcome, Mapping):
        return outcome
    long = {name: thing for name, thing in outcome.items() if isinstance(thing, Table) and _is_long(thing)}
    return {**outcome, **{name: _envelope(table) for name, table in long.items()}} if long else outcome


def _is_long(table: Table) -> bool:
    return table.rows > 2 * BINS and any(isinstance(cells, np.memmap) for cells in table.values())


def _envelope(table: Table) -> Table:
    count = min(BINS, table.rows)
    edges = (np.arange(count + 1) * table.rows // count).tolist()
    columns: dict[str, Any] = {}
    for name, cells in table.items():
        if name == TIME or not isinstance(cells, np.ndarray) or cells.dtype.kind not in "iuf":
            columns[name] = [cells[start] for start in edges[:-1] for _ in range(2)]
        else:
            parts = [cells[start:stop] for start, stop in pairwise(edges)]
            both = [extreme.reduce(part) for part in parts for extreme in (np.fmin, np.fmax)]
            columns[name] = np.array(both, cells.dtype)
    return Table(columns).take_notes(table)
