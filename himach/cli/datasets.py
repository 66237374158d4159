"""``himach datasets``: what all nodes hold, as one name space."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from himach.cli.command_group import Command
from himach.cli.options import cache_option, key_option
from himach.cli.text import columns

if TYPE_CHECKING:
    from himach.io.dataset.name_space import Listed, NameSpace


@click.command(cls=Command)
@click.option("--server", metavar="HOST:PORT", help="Any server of them; default: this node's.")
@key_option
@click.option(
    "--wait", type=click.FloatRange(min=0.05), metavar="SECONDS", default=1.0, show_default=True,
    help="How long to wait for answers.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes are in bytes.")
@cache_option
def datasets(server: str | None, key: Path | None, wait: float, as_json: bool, cache: str | None) -> None:
    """List the datasets that a server and its peers hold: whole or what is missing, copies, nodes.

    All are asked at once; those that do not answer are named, and what they hold is not counted.
    """
    from himach.io.dataset.name_space import list_datasets
    from himach.io.server.address import Server

    if server is None and key is not None:
        raise click.UsageError("--key is for --server; give both")
    found = list_datasets(None if server is None else Server.of(server, key), cache, wait)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
        return
    click.echo(_shown(found))
    for address, reason in found.silent.items():
        click.echo(f"no answer: {address} ({reason.removeprefix(f'{address}: ')})")


def _shown(found: NameSpace) -> str:
    """Return the list as text."""
    if not found.datasets:
        return f"no datasets in {len(found.stores)} stores"
    head = ("dataset", "frames", "there", "copies", "layout", "nodes", "size", "last used", "origin")
    return columns([head, *map(_row, found.datasets)], left=frozenset([0, 2, 4, 5, 7, 8]))


def _row(one: Listed) -> tuple[str, ...]:
    from himach.io.store.sizes import show_size

    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_used)) if one.last_used else "unknown"
    missing = ", ".join(map(str, one.missing)) + (", ..." if one.frames - one.held > len(one.missing) else "")
    there = "whole" if one.whole else f"{one.held:,}, without {missing}"
    copies = "-" if one.copies is None else "-".join(map(str, dict.fromkeys(one.copies)))
    wanted = f" of {one.wanted_copies}" if one.copies is not None and one.copies[0] < one.wanted_copies else ""
    nodes = f"{len(one.nodes)}: {', '.join(one.nodes[:4])}{', ...' if len(one.nodes) > 4 else ''}"
    origin = (
        "pushed" if not one.origin else one.origin[0] + (f" and {len(one.origin) - 1} more" if one.origin[1:] else "")
    )
    name = f"{one.name} (older)" if one.older else one.name
    size = show_size(one.nbytes)
    return name, f"{one.frames:,}", there, f"{copies}{wanted}", one.layout, nodes, size, used, origin
