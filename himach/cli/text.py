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
    """Print text of himach's own, in which names of files and members may be anything."""
    click.echo(printable_lines(str(text)), err=err, nl=nl)


def columns(rows: Sequence[Sequence[str]], left: frozenset[int]) -> str:
    """Return rows of cells as aligned lines; the columns in `left` begin there, the others end at the right."""
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
    """Return facts of a store, one a line; sizes as people read them, what is None as unknown."""
    sizes = {name: show_size(value) for name, value in facts.items() if name in SIZES and value is not None}
    texts = {name: "unknown" if value is None else value for name, value in {**facts, **sizes}.items()}
    return named_lines([(name.replace("_", " "), value) for name, value in texts.items()])


def named_lines(facts: Sequence[tuple[str, Any]]) -> str:
    """Return facts with their names before them, one a line."""
    return columns([(name, str(value)) for name, value in facts], left=frozenset([0, 1]))


def format_minute(seconds: float) -> str:
    """Return a time of the clock, in seconds since 1970, as people read it; 0 is an unknown one."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "unknown"


def server_line(facts: Mapping[str, Any]) -> str:
    """Return what `himach.io.server.control.status` says."""
    if not facts["running"]:
        return "none"
    if not facts["answers"]:
        return f"pid {facts.get('pid')} runs and does not answer; 'himach cache stop' ends it"
    remote = f" and {facts['listen']}" if facts["listen"] else ""
    return (
        f"pid {facts['pid']} at {facts['socket']}{remote}: {facts['connections']} of {facts['max_connections']} "
        f"connections, {facts['frames']:,} frames pushed, {facts['places']:,} frames read"
    )
