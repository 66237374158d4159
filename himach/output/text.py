"""Values and tables as text for terminals, `table_text()`, and as HTML for notebooks, `table_html()`.

Text is ASCII except for values. Long tables are shortened to head and tail, wide ones to the columns that fit.
"""

import html
import math
import pprint
import shutil
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from himach.errors import printable
from himach.output.cells import EDGE_CELLS, Cells, edge_cells, plain

Columns: TypeAlias = Mapping[str, Cells]

WIDEST_CELL = 40
LARGE, SMALL = 1e7, 1e-4  # range in which a column of floats needs no exponents
MOST_LINES = 20  # of a value
MOST_ROWS = 20  # a longer table shows its first and last EDGE_CELLS rows
MOST_COLUMNS = 20  # in HTML; text shows what fits into the terminal
GAP = "  "


def cells_text(cells: Cells) -> list[str]:
    """Format the cells of a column: floats in one readable precision, others as they read."""
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind == "f":
            return _floats(cells)
        return [str(cell) for cell in (cells.tolist() if cells.dtype.kind in "biuc" else cells)]
    return [_short(cell) for cell in cells]


def alignment(cells: Cells) -> str:
    """Return the alignment of a column: numbers to the right."""
    if isinstance(cells, np.ndarray):
        return "right" if cells.dtype.kind in "iufcm" else "left"
    numbers = [isinstance(cell, int | float) for cell in edge_cells(cells) if cell is not None]
    return "right" if numbers and all(numbers) else "left"


def array_text(array: npt.NDArray[Any]) -> str:
    """Describe an array by shape, type and range; format a scalar as a value."""
    if array.ndim == 0:
        return value_text(array[()])
    description = f"array {array.shape} {array.dtype}"
    if array.dtype.kind == "f" and array.size:
        finite = array[np.isfinite(array)]
        if finite.size < array.size:
            description += f", {array.size - finite.size} not finite"
        return description + (f", from {finite.min():.6g} to {finite.max():.6g}" if finite.size else "")
    if array.dtype.kind in "iu" and array.size:
        return f"{description}, from {array.min()} to {array.max()}"
    return description


def value_text(value: Any) -> str:
    """Format any other value, cut to `MOST_LINES` lines."""
    if isinstance(value, str):
        lines = [printable(line) for line in value.splitlines()] or [""]
    elif isinstance(value, float | np.floating):
        return f"{float(value):.8g}"
    else:
        lines = [printable(line) for line in pprint.pformat(plain(value), width=76, sort_dicts=False).splitlines()]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"... and {count(len(lines) - MOST_LINES, 'line')}"]
    return "\n".join(lines)


def count(n: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 2 rows."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _floats(cells: npt.NDArray[np.floating[Any]]) -> list[str]:
    """Format floats in one precision of at most six significant digits; with exponents if very large or very small."""
    values = [float(cell) for cell in cells]
    finite = [value for value in values if math.isfinite(value)]
    largest = max(map(abs, finite), default=0.0)
    if largest >= LARGE or 0 < largest < SMALL:
        digits = max(_decimals(f"{value:.5e}".partition("e")[0]) for value in finite)
        return [f"{value:.{digits}e}" for value in values]
    digits = max((_decimals(f"{value:.6g}") for value in finite if abs(value) >= SMALL), default=1)
    return [f"{value:.1e}" if 0 < abs(value) < SMALL else f"{value:.{min(digits, 6)}f}" for value in values]


def _decimals(text: str) -> int:
    return 1 if "e" in text else max(1, len(text.partition(".")[2].rstrip("0")))


def _short(cell: Any) -> str:
    if isinstance(cell, np.ndarray) and cell.ndim:
        return array_text(cell)
    if isinstance(cell, float | np.floating):
        return f"{float(cell):.6g}"
    text = printable("" if cell is None else str(plain(cell)))
    return text if len(text) <= WIDEST_CELL else text[: WIDEST_CELL - 3] + "..."


def table_text(columns: Columns, indent: str = "", width: int | None = None) -> str:
    """Format a table as aligned text: names, rows (head and tail of a long table), number of rows."""
    width = (width or max(shutil.get_terminal_size().columns, 40)) - len(indent)
    text_columns, hidden = _fit_columns(columns, width)
    lines = [GAP.join(cells).rstrip() for cells in zip(*text_columns, strict=True)]
    if hidden:
        lines.append(f"and {count(len(hidden), 'column')}: {', '.join(hidden)}")
    lines.append(f"[{_rows(columns)}]")
    return "\n".join(indent + line for line in lines)


def table_html(columns: Columns, caption: str = "") -> str:
    """Format a table as HTML, shortened like the text."""
    hidden = [html.escape(name) for name in list(columns)[MOST_COLUMNS:]]
    more = f" and {count(len(hidden), 'column')}: {', '.join(hidden)}" if hidden else ""
    title = f"<b>{html.escape(caption)}</b>: " if caption else ""
    note = f'<caption style="text-align:left; caption-side:top">{title}{_rows(columns)}{more}</caption>'
    html_columns = [_html_cells(name, cells) for name, cells in list(columns.items())[:MOST_COLUMNS]]
    head, *rows = (f"<tr>{''.join(row)}</tr>" for row in zip(*html_columns, strict=True)) if html_columns else [""]
    return f"<table>{note}<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _html_cells(name: str, cells: Cells) -> list[str]:
    """Return a column's name and its displayed cells as HTML."""
    texts, gap = _display_texts(cells)
    style = f'style="text-align:{alignment(cells)}"'
    html_cells = [f"<td {style}>{html.escape(text)}</td>" for text in texts]
    if gap:
        html_cells.insert(gap, f"<td {style}>&#8942;</td>")
    return [f'<th scope="col" {style}>{html.escape(name)}</th>', *html_cells]


def _fit_columns(columns: Columns, width: int) -> tuple[list[list[str]], list[str]]:
    """Return the columns that fit into `width` as aligned lines, and the names of the others."""
    text_columns: list[list[str]] = []
    names = list(columns)
    for i, name in enumerate(names):
        column = _align(name, columns[name])
        width -= len(column[0]) + (len(GAP) if text_columns else 0)
        if width < 0 and text_columns:
            return text_columns, names[i:]
        text_columns.append(column)
    return text_columns, []


def _align(name: str, cells: Cells) -> list[str]:
    texts, gap = _display_texts(cells)
    title = printable(name)
    width = max(len(text) for text in [title, *texts, "..." if gap else ""])
    right = alignment(cells) == "right"
    lines = [text.rjust(width) if right else text.ljust(width) for text in [title, *texts]]
    lines.insert(1, "-" * width)
    if gap:
        lines.insert(2 + gap, "...".rjust(width) if right else "...".ljust(width))
    return lines


def _display_texts(cells: Cells) -> tuple[list[str], int]:
    """Return the texts of displayed cells, and how many of them precede the gap (0 without one)."""
    if len(cells) <= MOST_ROWS:
        return cells_text(cells[:]), 0
    return cells_text(edge_cells(cells)), EDGE_CELLS


def _rows(columns: Columns) -> str:
    return count(len(next(iter(columns.values()), ())), "row")
