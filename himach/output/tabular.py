"""Columns side by side: `table_text()` for terminals, `table_html()` for notebooks.

Long tables are shortened to head and tail, wide ones to the columns that fit.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Mapping
from typing import TypeAlias

from himach.errors import printable
from himach.output.cells import EDGE_CELLS, Cells, LongCells, alignment, cells_text, count, ends_of

Columns: TypeAlias = Mapping[str, Cells | LongCells]

MOST_ROWS = 20  # a longer table shows its first and last EDGE_CELLS rows
MOST_COLUMNS = 20  # in HTML; text shows what fits into the terminal
GAP = "  "


def table_text(columns: Columns, indent: str = "", width: int | None = None) -> str:
    """Return a table as aligned text: names, rows (head and tail of a long table), number of rows.

    `indent` is put before every line. Columns beyond `width`, by default the terminal's, are only named.
    """
    width = (width or max(shutil.get_terminal_size().columns, 40)) - len(indent)
    drawn, hidden = _fitting(columns, width)
    lines = [GAP.join(cells).rstrip() for cells in zip(*drawn, strict=True)]
    if hidden:
        lines.append(f"and {count(len(hidden), 'column')}: {', '.join(hidden)}")
    lines.append(f"[{_rows(columns)}]")
    return "\n".join(indent + line for line in lines)


def table_html(columns: Columns, caption: str = "") -> str:
    """Return a table as HTML, shortened like the text."""
    hidden = [html.escape(name) for name in list(columns)[MOST_COLUMNS:]]
    more = f" and {count(len(hidden), 'column')}: {', '.join(hidden)}" if hidden else ""
    title = f"<b>{html.escape(caption)}</b>: " if caption else ""
    note = f'<caption style="text-align:left; caption-side:top">{title}{_rows(columns)}{more}</caption>'
    drawn = [_html_cells(name, cells) for name, cells in list(columns.items())[:MOST_COLUMNS]]
    head, *rows = (f"<tr>{''.join(row)}</tr>" for row in zip(*drawn, strict=True)) if drawn else [""]
    return f"<table>{note}<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _html_cells(name: str, cells: Cells | LongCells) -> list[str]:
    """Return a column's name and its cells to show as HTML."""
    texts, gap = _shown(cells)
    style = f'style="text-align:{alignment(cells)}"'
    drawn = [f"<td {style}>{html.escape(text)}</td>" for text in texts]
    if gap:
        drawn.insert(gap, f"<td {style}>&#8942;</td>")
    return [f'<th scope="col" {style}>{html.escape(name)}</th>', *drawn]


def _fitting(columns: Columns, width: int) -> tuple[list[list[str]], list[str]]:
    """Return the columns that fit into `width`, as aligned lines, and the names of the others."""
    drawn: list[list[str]] = []
    names = list(columns)
    for i, name in enumerate(names):
        column = _aligned(name, columns[name])
        width -= len(column[0]) + (len(GAP) if drawn else 0)
        if width < 0 and drawn:
            return drawn, names[i:]
        drawn.append(column)
    return drawn, []


def _aligned(name: str, cells: Cells | LongCells) -> list[str]:
    texts, gap = _shown(cells)
    title = printable(name)
    width = max(len(text) for text in [title, *texts, "..." if gap else ""])
    right = alignment(cells) == "right"
    lines = [text.rjust(width) if right else text.ljust(width) for text in [title, *texts]]
    lines.insert(1, "-" * width)
    if gap:
        lines.insert(2 + gap, "...".rjust(width) if right else "...".ljust(width))
    return lines


def _shown(cells: Cells | LongCells) -> tuple[list[str], int]:
    """Return the texts of the cells to show and how many of them stand before the gap (0 without one)."""
    if len(cells) <= MOST_ROWS:
        return cells_text(cells[:]), 0
    return cells_text(ends_of(cells)), EDGE_CELLS


def _rows(columns: Columns) -> str:
    return count(len(next(iter(columns.values()), ())), "row")
