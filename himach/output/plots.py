"""Pictures: an analysis's plot() on a figure of its own, drawn here or by a process that has Matplotlib already.

Figures are made without pyplot: no global state, no display, and the same bytes for the same outcome.
"""

from __future__ import annotations

import gc
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np

from himach.analysis import Analysis, state_without_universe
from himach.output.parts import parts
from himach.output.table import Table

if TYPE_CHECKING:
    from himach.launch.helper import Helper

SIZE_INCHES = (6.4, 4.2)  # inches, of one plot
DPI = 150
#: What plot() does not call, whose modules (MDAnalysis, SciPy) need not be imported where it is called.
LEFT_OUT = frozenset(
    {"setup", "atoms", "map", "combine", "reduce", "reduce_many", "finish", "then", "__dict__", "__weakref__"}
)
#: Bytes of what is drawn elsewhere, at most: a copy of it is made.
MOST_SENT = 1 << 26


def figure(plots: Sequence[tuple[str, Analysis, Any]]) -> Any:
    """Draw plots below one another on a figure that shows itself in a notebook.

    Title, analysis and outcome of each are given; exceptions of plot() pass through.
    """
    picture = canvas((SIZE_INCHES[0], SIZE_INCHES[1] * len(plots)))
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


def canvas(size: tuple[float, float]) -> Any:
    """Return an empty figure of so many inches, which a notebook shows without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):  # type: ignore[misc, unused-ignore]
        def _repr_png_(self) -> bytes:
            return png(self)

    picture = Picture(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(picture)
    return picture


def drawn_by(helper: Helper | None, plots: Sequence[tuple[str, Analysis, Any]]) -> list[bytes | None]:
    """Have a helper that does `draw_when_asked` draw each plot alone; return their PNGs, None for what is left to do.

    What does not travel is left, as is what raises, warns or prints, so that it does so here. So is all of it where
    Matplotlib was imported here: the user's code may have set its style.
    """
    nothing: list[bytes | None] = [None] * len(plots)
    if helper is None or not plots or "matplotlib" in sys.modules:
        return nothing
    request = pickle.dumps((list(sys.path), [_packed(*plot) for plot in plots]))
    answer = helper.answer(request)
    return nothing if answer is None else list(pickle.loads(answer))


def draw_when_asked(wait: Callable[[], bytes]) -> bytes:
    """Import Matplotlib and wait for what `drawn_by` asks for."""
    gc.disable()  # a short life, of which most is imports
    import himach.launch.code_pickle  # noqa: F401 (what is packed needs it)

    canvas(SIZE_INCHES).subplots()
    sys.path[:], packed = pickle.loads(wait())
    return pickle.dumps([None if one is None else _drawn(one) for one in packed])


def _packed(label: str, analysis: Analysis, outcome: Any) -> bytes | None:
    """Return a plot as bytes, with the code of the analysis that it may call; None if it cannot travel."""
    from himach.launch.code_pickle import CodePickler, by_value

    given = Analysis.__mro__
    classes = [cls for cls in type(analysis).__mro__ if cls not in given]
    body = {name: value for cls in reversed(classes) for name, value in vars(cls).items() if name not in LEFT_OUT}
    modules = [sys.modules[name] for name in {cls.__module__ for cls in classes} - {"__main__"}]
    file = _Bounded()
    try:
        drawer: Any = object.__new__(type(type(analysis).__name__, (Analysis,), {**body, "__module__": "__main__"}))
        with by_value(modules):
            CodePickler(file).dump((label, drawer, state_without_universe(analysis), outcome))
    except Exception:
        return None
    return file.getvalue()


def _drawn(packed: bytes) -> bytes | None:
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(record=True) as heard:
            label, drawer, state, outcome = pickle.loads(packed)
            drawer.__dict__.update({name: pickle.loads(value) for name, value in state.items()})
            picture = png(figure([(label, drawer, outcome)]))
    except Exception:
        return None
    return None if heard or said.getvalue() else picture


class _Bounded(io.BytesIO):
    """A file that takes `MOST_SENT` bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_SENT:
            raise OverflowError("too much to be sent")
        return super().write(data)
