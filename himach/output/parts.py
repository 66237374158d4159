"""Named parts of outcomes, `parts()`: shown by `parts_text()` and `parts_html()`, written to a file each."""

import html
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

import numpy as np

from himach.errors import printable
from himach.output.cells import plain
from himach.output.table import Column, Table, as_table, default_outcome, uneven_lengths
from himach.output.text import array_text, table_html, table_text, value_text

MOST_PARTS = 40  # of an outcome


def parts(outcome: Any, label: str) -> list[tuple[str, Any]]:
    """Return the named parts of an outcome: tables, arrays and other things.

    A table, an array or any other single object is named by the analysis's `label`; None has no parts. A single column
    becomes a table. A dict is name -> thing, and never a table itself. A mapping without names, tables and arrays is
    key -> result, as finish() got it, and becomes one table.
    """
    if outcome is None:
        return []
    if isinstance(outcome, Table) or not isinstance(outcome, Mapping):
        return [(label, tabulate(label, outcome))]
    named = {name: tabulate(str(name), thing) for name, thing in outcome.items()}
    has_names = any(isinstance(name, str) for name in named)
    if named and not has_names and not any(isinstance(thing, Table | np.ndarray) for thing in named.values()):
        return [(label, default_outcome(outcome))]
    return [(name if isinstance(name, str) else str(plain(name)), thing) for name, thing in named.items()]


def uneven_parts(outcome: Any, label: str) -> list[str]:
    """Describe the parts that are no tables only because their columns differ in length."""
    return [
        f"{label}: {name!r} of the outcome is no table, as its columns are not equally long "
        f"({', '.join(f'{column}: {rows}' for column, rows in lengths.items())}): it is kept as it is"
        for name, thing in parts(outcome, label)
        if (lengths := uneven_lengths(thing))
    ]


def collect_tables(labels: Sequence[str], outcomes: Sequence[Any]) -> dict[str, Table]:
    """Return the tables of outcomes by name; with several outcomes, by label and name."""
    several = len(labels) > 1
    return {
        f"{label}/{name}" if several else name: thing
        for label, outcome in zip(labels, outcomes, strict=True)
        for name, thing in parts(outcome, label)
        if isinstance(thing, Table)
    }


def tabulate(name: str, thing: Any) -> Any:
    """Convert a part of an outcome to a table if it is one; a single column becomes a table of that name."""
    if isinstance(thing, Column):
        return Table({name: thing})
    table = as_table(thing)
    return thing if table is None else table


def parts_text(parts: list[tuple[str, Any]]) -> str:
    """Format named parts of an outcome as text, each under its name."""
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
    """Format named parts of an outcome as HTML, each under its name."""
    remainder = f"<div>... and {len(parts) - MOST_PARTS} more</div>" if len(parts) > MOST_PARTS else ""
    return "".join(_part_html(name, value) for name, value in parts[:MOST_PARTS]) + remainder


def _part_text(name: str, value: Any) -> str:
    table = as_table(value)
    if table is not None:
        return f"{printable(name)}\n{table_text(table, indent='  ')}"
    if isinstance(value, np.ndarray):
        return f"{printable(name)}: {array_text(value)}"
    text = value_text(value)
    below = "\n" + indent(text, "  ", lambda line: True) if "\n" in text else f" {text}"
    return f"{printable(name)}:{below}"


def _part_html(name: str, value: Any) -> str:
    table = as_table(value)
    if table is not None:
        return table_html(table, name)
    text = array_text(value) if isinstance(value, np.ndarray) else value_text(value)
    tag = "pre" if "\n" in text else "span"
    return f"<div><b>{html.escape(name)}</b>: <{tag}>{html.escape(text)}</{tag}></div>"
