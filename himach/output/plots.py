"""Pictures: an analysis's plot() on a figure of its own.

Figures are made without pyplot: no global state, no display, and the same bytes for the same outcome.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from himach.analysis import Analysis
from himach.output.parts import parts
from himach.output.table import Table

SIZE = (6.4, 4.2)  # inches, of one plot
DPI = 150


def figure(plots: Sequence[tuple[str, Analysis, Any]]) -> Any:
    """Draw plots below one another on a figure that shows itself in a notebook.

    Title, analysis and outcome of each are given; exceptions of plot() pass through.
    """
    picture = _picture_class()(figsize=(SIZE[0], SIZE[1] * len(plots)), dpi=DPI, layout="constrained")
    rows = picture.subplots(len(plots), squeeze=False)[:, 0]
    for axes, (title, analysis, outcome) in zip(rows, plots, strict=True):
        draw(analysis, outcome, axes, title)
    return picture


def draw(analysis: Analysis, outcome: Any, axes: Any, title: str) -> None:
    """Draw an outcome on axes; what plot() leaves open (title) is filled in. Without plot(): its first table."""
    if analysis.defines("plot"):
        analysis.plot(outcome, axes)
    elif (table := drawable(outcome)) is not None:
        plot_table(table, axes)
    if not any(axes.get_title(loc) for loc in ("center", "left", "right")):
        axes.set_title(title)


def drawable(outcome: Any) -> Table | None:
    """Return the first table of an outcome that `plot_table` can draw; None if there is none."""
    tables = [thing for _, thing in parts(outcome, "") if isinstance(thing, Table)]
    return next((table for table in tables if table.rows and len(numeric(table)) > 1), None)


def plot_table(table: Table, axes: Any) -> None:
    """Draw the columns of numbers of a table over the first of them, with their units at the axes."""
    columns = numeric(table)
    x, *ys = columns
    for y in ys:
        axes.plot(table[x], table[y], label=y)
    axes.set_xlabel(table.label(x))
    units = {table.units.get(y, "") for y in ys}
    axes.set_ylabel(table.label(ys[0]) if len(ys) == 1 else units.pop() if len(units) == 1 else "")
    if len(ys) > 1:
        axes.legend()
    axes.grid(alpha=0.3)


def numeric(table: Table) -> list[str]:
    """Return the names of the columns that can be drawn: real numbers."""
    return [name for name, cells in table.items() if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf"]


def png(picture: Any) -> bytes:
    """Return a figure as a PNG without date and version, so that equal figures are equal bytes."""
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _picture_class() -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):  # type: ignore[misc, unused-ignore]
        """A figure that a notebook shows without pyplot."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            return png(self)

    return Picture
