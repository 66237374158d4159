"""``himach cache``: looking after the frame store of this node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from himach.cli.cache_server import config, start, stop
from himach.cli.command_group import CommandGroup
from himach.cli.options import cache_option, quota_option
from himach.cli.text import columns, echo, listed, minute, server_line

if TYPE_CHECKING:
    from himach.io.dataset.listing import Entry


@click.group(cls=CommandGroup)
def cache() -> None:
    """Look after the frames that this node keeps on its local disk."""


for command in (start, stop, config):
    cache.add_command(command)


@cache.command("list")
@cache_option
def list_(cache: str | None) -> None:
    """List the datasets: frames, bytes, last use."""
    from himach.io.dataset.listing import entries, open_existing
    from himach.io.store.place import store_place

    store = open_existing(cache)
    if store is None:
        echo(f"no frames are cached: there is no store at {store_place(cache)}")
        return
    found = entries(store)
    if not found:
        echo(f"no frames are cached at {store.path}")
        return
    rows: list[tuple[str, ...]] = [("dataset", "native", "alien", "layout", "size", "last used", "generation")]
    for one in found:
        rows += map(_row, (one, *(some for some in one.subsets if some.alien)))
    echo(columns(rows, left=frozenset([0, 3, 5, 6])))
    for one in found:
        if one.note:
            echo(f"{one.name}: {one.note}")


def _row(one: Entry) -> tuple[str, ...]:
    from himach.io.store.sizes import show_size

    layout = f"{one.layout} ({show_size(one.time_major)})" if one.form else one.layout
    size, used = show_size(one.nbytes), minute(one.last_used)
    name = f"  {one.atoms:,} of its atoms" if one.atoms else one.name
    return name, f"{one.native:,}", f"{one.alien:,}", layout, size, used, one.generation[:8]


@cache.command()
@cache_option
@click.option("--drop", is_flag=True, help="Drop the frames that are bad; they are then read from the origin again.")
def verify(cache: str | None, drop: bool) -> None:
    """Read everything again, check it, and name what is bad: exit code 1 if anything is."""
    from himach.io.dataset.listing import open_existing
    from himach.io.store import verify as verifying
    from himach.io.store.place import store_place
    from himach.io.store.sizes import show_size

    store = open_existing(cache, writing=drop)
    if store is None:
        echo(f"nothing to verify: there is no store at {store_place(cache)}")
        return
    found = verifying.verify(store)
    for bad in found.bad:
        echo(str(bad))
    echo(f"{store.path}: {found.frames:,} frames are sound ({show_size(found.nbytes)}), {len(found.bad)} bad")
    if found.bad and drop:
        echo(f"dropped {verifying.drop(store, found.bad):,} frames")
    if found.bad:
        raise click.exceptions.Exit(1)


@cache.command()
@click.argument("dataset", required=False)
@click.option(
    "--aliens", is_flag=True, help="Only frames that were kept after a read, none that were staged or pushed."
)
@click.option("--to", metavar="SIZE", help="Only until the store holds SIZE; what was not used for longest goes first.")
@click.option("--all", "everything", is_flag=True, help="All datasets.")
@cache_option
def evict(dataset: str | None, aliens: bool, to: str | None, everything: bool, cache: str | None) -> None:
    """Delete cached frames, whole segments at a time.

    What a run reads or writes just now stays and is named; the exit code is then 1.
    """
    from himach.io.dataset.listing import evict_chosen, open_existing
    from himach.io.store.place import store_place
    from himach.io.store.sizes import parse_size, show_size

    if dataset is None and not (aliens or to or everything):
        raise click.UsageError("say what to evict: a DATASET ('himach cache list' shows them), --aliens, --to or --all")
    if dataset is not None and everything:
        raise click.UsageError(f"either the dataset {dataset} or --all")
    size = None if to is None else parse_size(to)
    store = open_existing(cache, writing=True)
    if store is None:
        echo(f"nothing to evict: there is no store at {store_place(cache)}")
        return
    freed = evict_chosen(store, dataset, aliens=aliens, to=size)
    echo(f"freed {show_size(freed.nbytes)} in whole segments: {freed.segments}")
    for line in freed.busy:
        echo(f"kept {line}")
    if freed.busy:
        raise click.exceptions.Exit(1)


@cache.command()
@cache_option
@quota_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes are in bytes.")
def status(cache: str | None, quota: str | None, as_json: bool) -> None:
    """Say where the store of this node lies and what it holds."""
    from himach.io.dataset import listing
    from himach.io.server import control

    facts = {**listing.status(cache, quota), "server": control.status(cache)}
    if as_json:
        echo(json.dumps(facts, indent=2))
        return
    if facts["identity"] is None and facts["datasets"] is not None:
        facts["identity"] = "none: there is no store yet"
    facts["server"] = server_line(facts["server"])
    echo(listed(facts))
