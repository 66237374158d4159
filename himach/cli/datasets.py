"""``himach datasets``: the datasets of all nodes, as one name space; ``himach mount``: datasets as files."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from himach.cli import shared
from himach.cli.command_group import Command
from himach.cli.shared import columns, echo, format_minute
from himach.io.store.sizes import show_size

if TYPE_CHECKING:
    from himach.io.datasets.listing import ListedDataset, NameSpace


@click.command(cls=Command)
@click.option("--server", metavar="HOST:PORT", help="Any server of them; default: this node's.")
@shared.key_option
@click.option(
    "--wait", type=click.FloatRange(min=0.05), metavar="SECONDS", default=1.0, show_default=True,
    help="How long to wait for answers.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes are in bytes.")
@shared.cache_option
def datasets(server: str | None, key: Path | None, wait: float, as_json: bool, cache: str | None) -> None:
    """List the datasets that a server and its peers hold: whole or what is missing, copies, nodes.

    All are asked at once; those that do not answer are named, and what they hold is not counted.
    """
    from himach.io.datasets.listing import list_datasets
    from himach.io.server.survey import Server

    if server is None and key is not None:
        raise click.UsageError("--key is for --server; give both")
    listing = list_datasets(None if server is None else Server.from_address(server, key), cache, wait)
    if as_json:
        echo(json.dumps(listing.as_json(), indent=2))
        return
    echo(_format_table(listing))
    for dataset in listing.datasets:
        if dataset.oddity:
            echo(f"odd: {dataset.name} ({dataset.oddity})")
    for address, reason in listing.silent.items():
        echo(f"no answer: {address} ({reason.removeprefix(f'{address}: ')})")


def _format_table(listing: "NameSpace") -> str:
    """Return the list as text; show the slices of all ranks of a simulation, if any, on one line."""
    from himach.io.push.held_slices import SUFFIX

    slices: dict[str, list[ListedDataset]] = {}
    for dataset in listing.datasets:
        if dataset.name.endswith(SUFFIX) and dataset.frames:
            slices.setdefault(dataset.name, []).append(dataset)
    rows = [_row(dataset) for dataset in listing.datasets if not dataset.name.endswith(SUFFIX)]
    rows += [_slices_row(name, rank_slices) for name, rank_slices in slices.items()]
    if not rows:
        return f"no datasets in {len(listing.stores)} stores"
    head = ("dataset", "frames", "there", "copies", "nodes", "size", "last used", "origin")
    return columns([head, *rows], left=frozenset([0, 2, 4, 6, 7]))


def _slices_row(name: str, rank_slices: "list[ListedDataset]") -> tuple[str, ...]:
    frames = max(dataset.frames for dataset in rank_slices)
    nodes = sorted({node for dataset in rank_slices for node in dataset.nodes})
    size = show_size(sum(dataset.nbytes for dataset in rank_slices))
    used = format_minute(max(dataset.last_used for dataset in rank_slices))
    contents = f"slices of {len(rank_slices)} rank{'s' * (len(rank_slices) > 1)}"
    return name, f"{frames:,}", contents, "-", _first_nodes(nodes), size, used, "pushed"


def _first_nodes(nodes: list[str]) -> str:
    return f"{len(nodes)}: {', '.join(nodes[:4])}{', ...' if len(nodes) > 4 else ''}"


def _row(row: "ListedDataset") -> tuple[str, ...]:
    used = format_minute(row.last_used)
    missing = ", ".join(map(str, row.missing)) + (", ..." if row.frames - row.held > len(row.missing) else "")
    contents = "whole" if row.whole else f"{row.held:,}, without {missing}" if missing else f"{row.held:,}"
    if not row.frames:
        contents = "no frames"
    if row.subsets:
        contents += "; " + ", ".join(f"{subset['atoms']:,} atoms of {subset['frames']:,}" for subset in row.subsets)
    copies = "-" if row.copies is None else "-".join(map(str, dict.fromkeys(row.copies)))
    requested = f" of {row.wanted_copies}" if row.copies is not None and row.copies[0] < row.wanted_copies else ""
    nodes = _first_nodes(row.nodes)
    origin = (
        "pushed" if not row.origin else row.origin[0] + (f" and {len(row.origin) - 1} more" if row.origin[1:] else "")
    )
    name = f"{row.name} (older)" if row.older else row.name
    size = show_size(row.nbytes)
    return name, f"{row.frames:,}", contents, f"{copies}{requested}", nodes, size, used, origin


@click.command(cls=Command)
@click.argument("directory", type=shared.PATH, metavar="DIR")
@shared.cache_option
@shared.server_option
@shared.key_option
@click.option("--allow-other", is_flag=True, help="Let other users of this machine read, too.")
def mount(directory: Path, cache: str | None, server: str | None, key: Path | None, allow_other: bool) -> None:
    """Show datasets, of this node's store or of a server and its peers, as files, until Ctrl-C or an unmount.

    DIR/NAME holds the topology and trajectory.trr, .dcd and .nc, which are computed as they are read; a dataset that
    is named by its path lies at that path below DIR. Frames that the store does not have are read from the trajectory.
    """
    from himach.mount.mounting import mount as mount_data
    from himach.mount.stores import StoreDatasets
    from himach.ranks.quiet import quiet_ranks

    with quiet_ranks(0, command=True):
        datasets = StoreDatasets(shared.chosen_cache(cache, server, key and key.absolute()) or "auto")
        place = directory.absolute()
        os.chdir("/")  # so that no file of the present folder is taken for a dataset
        mount_data(datasets, place, lambda: echo(f"{directory} is mounted; Ctrl-C unmounts it", err=True), allow_other)
