"""``himach stage``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from himach.cli import shared
from himach.cli.command_group import Command
from himach.cli.text import echo
from himach.staging.options import StageOptions


@click.command(cls=Command)
@shared.trajectories_argument
@click.option("--topology", "-s", type=shared.SOURCE, metavar="PATH", help="Topology file, kept with the frames.")
@shared.dataclass_options(StageOptions)
@click.option("--assemble", is_flag=True, help="Put together the slices that a simulation has pushed under the name.")
@shared.cache_option
@shared.server_option
@shared.key_option
@shared.ranks_option
@shared.keywords_option
@shared.quiet_option
def stage(
    keywords: tuple[str, ...],
    assemble: bool,
    server: str | None,
    key: Path | None,
    ranks: int | None,
    oversubscribe: bool,
    **options: Any,
) -> None:
    """Store a trajectory's frames on the local disks of the nodes that will analyse it.

    Under srun or mpiexec every rank reads its part and stores it on its own node; alone, this fills the local store.
    Interrupted, it goes on where it was when it is started again. With --server, TRAJ is a dataset of other machines.

    With --assemble, the trajectory is the name under which the ranks of a simulation have pushed slices.
    """
    from himach.runner.commands import StageCommand
    from himach.runner.run import on_ranks

    values = {"server": shared.chosen_cache(None, server, key), **options}
    values = {name: value for name, value in values.items() if value is not None}
    command = StageCommand(keywords, values, assemble)
    staged = on_ranks(command, shared.started_ranks(ranks, oversubscribe))
    if staged is not None:
        echo(staged)
