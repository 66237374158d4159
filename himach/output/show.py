"""Outcomes for people: aligned text for terminals, HTML for notebooks.

Long tables are shortened to head and tail, wide ones to the columns that fit; arrays are summed up. All text is ASCII
but for what the outcome itself contains.
"""

from __future__ import annotations

import html
import math
import pprint
import shutil
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.output.plain import plain
from himach.output.table import Column, Table, as_table

__all__ = ["cells_text", "parts_html", "parts_text", "table_html", "table_text"]

MOST_ROWS = 20  # a longer table shows its first and last EDGE rows
EDGE = 6
WIDEST_CELL = 40
LARGE, SMALL = 1e7, 1e-4  # floats of a column are written out between these
MOST_PARTS = 40  # of an outcome
MOST_COLUMNS = 20  # in HTML; text shows what fits into the terminal
GAP = "  "


def table_text(table: Table, indent: str = "", width: int | None = None) -> str:
    """Return a table as aligned text: names, rows (head and tail of a long table), number of rows.

    Parameters
    ----------
    table
        What to show.
    indent
        Put before every line.
    width
        Characters of a line; the terminal's by default. Columns beyond it are only named.
    """
    width = (width or max(shutil.get_terminal_size().columns, 40)) - len(indent)
    drawn, hidden = _fitting(table, width)
    lines = [GAP.join(cells).rstrip() for cells in zip(*drawn, strict=True)]
    if hidden:
        lines.append(f"and {_count(len(hidden), 'column')}: {', '.join(hidden)}")
    lines.append(f"[{_count(table.rows, 'row')}]")
    return "\n".join(indent + line for line in lines)


def table_html(table: Table, caption: str = "") -> str:
    """Return a table as HTML, shortened like the text."""
    hidden = [_escape(name) for name in list(table)[MOST_COLUMNS:]]
    more = f" and {_count(len(hidden), 'column')}: {', '.join(hidden)}" if hidden else ""
    title = f"<b>{_escape(caption)}</b>: " if caption else ""
    note = f'<caption style="text-align:left; caption-side:top">{title}{_count(table.rows, "row")}{more}</caption>'
    columns = [_html_cells(name, cells) for name, cells in list(table.items())[:MOST_COLUMNS]]
    head, *rows = (f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True)) if columns else [""]
    return f"<table>{note}<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _html_cells(name: str, cells: Column) -> list[str]:
    """Return a column's name and its cells to show as HTML."""
    texts, gap = _shown(cells)
    style = f'style="text-align:{_align(cells)}"'
    drawn = [f"<td {style}>{_escape(text)}</td>" for text in texts]
    if gap:
        drawn.insert(gap, f"<td {style}>&#8942;</td>")
    return [f"<th {style}>{_escape(name)}</th>", *drawn]


def parts_text(parts: list[tuple[str, Any]]) -> str:
    """Return named parts of an outcome as text, each under its name."""
    text = previous = ""
    pieces = [_part_text(name, value) for name, value in parts[:MOST_PARTS]]
    if len(parts) > MOST_PARTS:
        pieces.append(f"... and {len(parts) - MOST_PARTS} more")
    for piece in pieces:
        gap = "\n\n" if "\n" in previous + piece else "\n"
        text += gap + piece if text else piece
        previous = piece
    return text


def parts_html(parts: list[tuple[str, Any]]) -> str:
    """Return named parts of an outcome as HTML, each under its name."""
    more = f"<div>... and {len(parts) - MOST_PARTS} more</div>" if len(parts) > MOST_PARTS else ""
    return "".join(_part_html(name, value) for name, value in parts[:MOST_PARTS]) + more


def cells_text(cells: Column) -> list[str]:
    """Return the cells of a column as text: floats of a column in one readable precision, anything else as it reads."""
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind == "f":
            return _floats(cells)
        return [str(cell) for cell in (cells.tolist() if cells.dtype.kind in "biuc" else cells)]
    return [_short(cell) for cell in cells]


def _fitting(table: Table, width: int) -> tuple[list[list[str]], list[str]]:
    """Return the columns that fit into `width`, as aligned lines, and the names of the others."""
    drawn: list[list[str]] = []
    names = list(table)
    for i, name in enumerate(names):
        column = _aligned(name, table[name])
        width -= len(column[0]) + (len(GAP) if drawn else 0)
        if width < 0 and drawn:
            return drawn, names[i:]
        drawn.append(column)
    return drawn, []


def _aligned(name: str, cells: Column) -> list[str]:
    texts, gap = _shown(cells)
    title = _printable(name)
    width = max(len(text) for text in [title, *texts, "..." if gap else ""])
    right = _align(cells) == "right"
    lines = [text.rjust(width) if right else text.ljust(width) for text in [title, *texts]]
    lines.insert(1, "-" * width)
    if gap:
        lines.insert(2 + gap, "...".rjust(width) if right else "...".ljust(width))
    return lines


def _shown(cells: Column) -> tuple[list[str], int]:
    """Return the texts of the cells to show and how many of them stand before the gap (0 without one)."""
    if len(cells) <= MOST_ROWS:
        return cells_text(cells), 0
    if isinstance(cells, np.ndarray):
        return cells_text(np.concatenate([cells[:EDGE], cells[-EDGE:]])), EDGE
    return cells_text(cells[:EDGE] + cells[-EDGE:]), EDGE


def _align(cells: Column) -> str:
    if isinstance(cells, np.ndarray):
        return "right" if cells.dtype.kind in "iufcm" else "left"
    numbers = [isinstance(cell, int | float) for cell in cells[:EDGE] + cells[-EDGE:] if cell is not None]
    return "right" if numbers and all(numbers) else "left"


def _floats(cells: npt.NDArray[np.floating[Any]]) -> list[str]:
    """Return floats in one precision: six significant digits at most, trailing zeros that all share cut.

    A column of very large or very small numbers gets exponents; single small ones beside usual numbers have their own.
    """
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
        return _array_text(cell)
    if isinstance(cell, float | np.floating):
        return f"{float(cell):.6g}"
    text = _printable("" if cell is None else str(plain(cell)))
    return text if len(text) <= WIDEST_CELL else text[: WIDEST_CELL - 3] + "..."


def _printable(text: str) -> str:
    """Return text that cannot upset a terminal: control characters are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _part_text(name: str, value: Any) -> str:
    table = as_table(value)
    if table is not None:
        return f"{_printable(name)}\n{table_text(table, indent='  ')}"
    if isinstance(value, np.ndarray):
        return f"{_printable(name)}: {_array_text(value)}"
    text = _value_text(value)
    return f"{_printable(name)}:\n{_indented(text)}" if "\n" in text else f"{_printable(name)}: {text}"


def _part_html(name: str, value: Any) -> str:
    table = as_table(value)
    if table is not None:
        return table_html(table, name)
    text = _array_text(value) if isinstance(value, np.ndarray) else _value_text(value)
    tag = "pre" if "\n" in text else "span"
    return f"<div><b>{_escape(name)}</b>: <{tag}>{_escape(text)}</{tag}></div>"


def _array_text(array: npt.NDArray[Any]) -> str:
    """Return what an array is: shape, type and range, or its elements where they are few."""
    if array.ndim == 0:
        return _value_text(array[()])
    what = f"array {array.shape} {array.dtype}"
    if array.dtype.kind == "f" and array.size:
        finite = array[np.isfinite(array)]
        if finite.size < array.size:
            what += f", {array.size - finite.size} not finite"
        return what + (f", from {finite.min():.6g} to {finite.max():.6g}" if finite.size else "")
    if array.dtype.kind in "iu" and array.size:
        return f"{what}, from {array.min()} to {array.max()}"
    return what


def _value_text(value: Any, most_lines: int = 20) -> str:
    if isinstance(value, str):
        lines = [_printable(line) for line in value.splitlines()] or [""]
    elif isinstance(value, float | np.floating):
        return f"{float(value):.8g}"
    else:
        lines = [_printable(line) for line in pprint.pformat(plain(value), width=76, sort_dicts=False).splitlines()]
    if len(lines) > most_lines:
        lines = [*lines[:most_lines], f"... and {_count(len(lines) - most_lines, 'line')}"]
    return "\n".join(lines)


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())


def _escape(text: str) -> str:
    return html.escape(str(text))


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
