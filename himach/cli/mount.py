"""``himach mount``: datasets as files for programs without support for himach."""

from __future__ import annotations

import os
from pathlib import Path

import click

from himach.cli import shared
from himach.cli.command_group import Command
from himach.cli.text import echo


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
