"""The named parts of an outcome as text for terminals and HTML for notebooks; arrays are summed up."""

from __future__ import annotations

import html
from textwrap import indent
from typing import Any

import numpy as np

from himach.errors import printable
from himach.output.cells import array_text, value_text
from himach.output.table import as_table
from himach.output.tabular import table_html, table_text

MOST_PARTS = 40  # of an outcome


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


def _part_text(name: str, value: Any) -> str:
    table = as_table(value)
    if table is not None:
        return f"{printable(name)}\n{table_text(table, indent='  ')}"
    if isinstance(value, np.ndarray):
        return f"{printable(name)}: {array_text(value)}"
    text = value_text(value)
    return f"{printable(name)}:{_behind(text)}"


def _behind(text: str) -> str:
    return "\n" + indent(text, "  ", lambda line: True) if "\n" in text else f" {text}"


def _part_html(name: str, value: Any) -> str:
    table = as_table(value)
    if table is not None:
        return table_html(table, name)
    text = array_text(value) if isinstance(value, np.ndarray) else value_text(value)
    tag = "pre" if "\n" in text else "span"
    return f"<div><b>{html.escape(name)}</b>: <{tag}>{html.escape(text)}</{tag}></div>"
