"""Facts as lines of text: `columns()` of rows, `format_facts()` with names, `server_line()`, `format_minute()`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from himach.errors import printable_lines
from himach.io.store.sizes import show_size

SIZES = frozenset(["size", "free", "reserve", "quota", "used", "copies"])


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print himach's own text, in which names of files and members may hold any characters."""
    click.echo(printable_lines(str(text)), err=err, nl=nl)


def columns(rows: Sequence[Sequence[str]], left: frozenset[int]) -> str:
    """Return rows of cells as aligned lines; columns in `left` are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def format_facts(facts: Mapping[str, Any]) -> str:
    """Return facts of a store, one a line, with readable sizes; None is shown as unknown."""
    sizes = {name: show_size(value) for name, value in facts.items() if name in SIZES and value is not None}
    texts = {name: "unknown" if value is None else value for name, value in {**facts, **sizes}.items()}
    return named_lines([(name.replace("_", " "), value) for name, value in texts.items()])


def named_lines(facts: Sequence[tuple[str, Any]]) -> str:
    """Return facts, each after its name, one a line."""
    return columns([(name, str(value)) for name, value in facts], left=frozenset([0, 1]))


def format_minute(seconds: float) -> str:
    """Return a time in seconds since 1970 as a readable date and minute; 0 is unknown."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "unknown"


def server_line(facts: Mapping[str, Any]) -> str:
    """Return a line on the `facts` of `himach.io.server.control.status`."""
    if not facts["running"]:
        return "none"
    if not facts["answers"]:
        return f"pid {facts.get('pid')} runs and does not answer; 'himach cache stop' ends it"
    remote = f" and {facts['listen']}" if facts["listen"] else ""
    return (
        f"pid {facts['pid']} at {facts['socket']}{remote}: {facts['connections']} of {facts['max_connections']} "
        f"connections, {facts['frames']:,} frames pushed, {facts['places']:,} frames read"
    )
