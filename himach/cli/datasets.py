"""``himach datasets``: what all nodes hold, as one name space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from himach.cli.command_group import Command
from himach.cli.options import cache_option, key_option
from himach.cli.text import columns, echo, minute
from himach.io.store.sizes import show_size

if TYPE_CHECKING:
    from himach.io.dataset.name_space import ListedDataset, NameSpace


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
    from himach.io.server.survey import Server

    if server is None and key is not None:
        raise click.UsageError("--key is for --server; give both")
    found = list_datasets(None if server is None else Server.from_address(server, key), cache, wait)
    if as_json:
        echo(json.dumps(found.as_json(), indent=2))
        return
    echo(_shown(found))
    for one in found.datasets:
        if one.oddity:
            echo(f"odd: {one.name} ({one.oddity})")
    for address, reason in found.silent.items():
        echo(f"no answer: {address} ({reason.removeprefix(f'{address}: ')})")


def _shown(found: NameSpace) -> str:
    """Return the list as text; the slices of all ranks of a simulation are one line, while there are some."""
    from himach.io.push.held_slices import SUFFIX

    slices: dict[str, list[ListedDataset]] = {}
    for one in found.datasets:
        if one.name.endswith(SUFFIX) and one.frames:
            slices.setdefault(one.name, []).append(one)
    rows = [_row(one) for one in found.datasets if not one.name.endswith(SUFFIX)]
    rows += [_row_of_slices(name, of_ranks) for name, of_ranks in slices.items()]
    if not rows:
        return f"no datasets in {len(found.stores)} stores"
    head = ("dataset", "frames", "there", "copies", "nodes", "size", "last used", "origin")
    return columns([head, *rows], left=frozenset([0, 2, 4, 6, 7]))


def _row_of_slices(name: str, of_ranks: list[ListedDataset]) -> tuple[str, ...]:
    frames = max(one.frames for one in of_ranks)
    nodes = sorted({node for one in of_ranks for node in one.nodes})
    size = show_size(sum(one.nbytes for one in of_ranks))
    used = minute(max(one.last_used for one in of_ranks))
    there = f"slices of {len(of_ranks)} rank{'s' * (len(of_ranks) > 1)}"
    return name, f"{frames:,}", there, "-", _few(nodes), size, used, "pushed"


def _few(nodes: list[str]) -> str:
    return f"{len(nodes)}: {', '.join(nodes[:4])}{', ...' if len(nodes) > 4 else ''}"


def _row(one: ListedDataset) -> tuple[str, ...]:
    used = minute(one.last_used)
    missing = ", ".join(map(str, one.missing)) + (", ..." if one.frames - one.held > len(one.missing) else "")
    there = "whole" if one.whole else f"{one.held:,}, without {missing}" if missing else f"{one.held:,}"
    if not one.frames:
        there = "no frames"
    if one.subsets:
        there += "; " + ", ".join(f"{some['atoms']:,} atoms of {some['frames']:,}" for some in one.subsets)
    copies = "-" if one.copies is None else "-".join(map(str, dict.fromkeys(one.copies)))
    wanted = f" of {one.wanted_copies}" if one.copies is not None and one.copies[0] < one.wanted_copies else ""
    nodes = _few(one.nodes)
    origin = (
        "pushed" if not one.origin else one.origin[0] + (f" and {len(one.origin) - 1} more" if one.origin[1:] else "")
    )
    name = f"{one.name} (older)" if one.older else one.name
    size = show_size(one.nbytes)
    return name, f"{one.frames:,}", there, f"{copies}{wanted}", nodes, size, used, origin
