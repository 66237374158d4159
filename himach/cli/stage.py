"""``himach stage``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from himach.cli.command_group import Command
from himach.cli.options import (
    PATH,
    cache_option,
    chosen_cache,
    key_option,
    keywords_option,
    quiet_option,
    quota_option,
    ranks_option,
    server_option,
    started_ranks,
    trajectories_argument,
)

__all__ = ["stage"]


@click.command(cls=Command)
@trajectories_argument
@click.option("--topology", "-s", type=PATH, metavar="PATH", help="Topology file, kept with the frames.")
@click.option("--dataset", metavar="NAME", help="Name to stage under; default: the trajectory's absolute path.")
@click.option(
    "--placement", type=click.Choice(["spread", "runs"]), default="spread", show_default=True,
    help="Frames round-robin over the nodes, or neighbours together.",
)  # fmt: skip
@cache_option
@quota_option
@click.option(
    "--copies", type=click.IntRange(min=1), metavar="N",
    help="Nodes that hold each frame, so that a lost one costs nothing.  [default: 1]",
)  # fmt: skip
@click.option("--repair", is_flag=True, help="Restore the number of copies of what the nodes hold of dataset TRAJ.")
@server_option
@key_option
@click.option(
    "--layout", type=click.Choice(["frame", "time", "both"]),
    help="Keep frames one by one, as chunks of few atoms' tracks, or both ways.  [default: as it is]",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Keep up with a trajectory that is being written, until Ctrl-C.")
@click.option("--assemble", is_flag=True, help="Put together the slices that a simulation has pushed under the name.")
@click.option("--idle", type=float, metavar="SECONDS", help="End --follow when no frame has come for so long.")
@ranks_option
@keywords_option
@quiet_option
def stage(
    trajectories: tuple[Path, ...],
    topology: Path | None,
    dataset: str | None,
    placement: Literal["spread", "runs"],
    cache: str | None,
    quota: str | None,
    copies: int | None,
    repair: bool,
    server: str | None,
    key: Path | None,
    layout: Literal["frame", "time", "both"] | None,
    follow: bool,
    assemble: bool,
    idle: float | None,
    ranks: int | None,
    keywords: tuple[str, ...],
    quiet: bool,
) -> None:
    """Store a trajectory's frames on the local disks of the nodes that will analyse it.

    Under srun or mpiexec every rank reads its part and stores it on its own node; alone, this fills the local store.
    Interrupted, it goes on where it was when it is started again. With --server, TRAJ is a dataset of other machines.

    With --layout both, TRAJ may be the name of a dataset that the nodes hold.

    With --assemble, the trajectory is the name under which the ranks of a simulation have pushed slices.
    """
    from himach.runner.commands import StageCommand
    from himach.runner.run import on_ranks

    command = StageCommand(
        trajectories=trajectories,
        topology=topology,
        dataset=dataset,
        placement=placement,
        cache=cache,
        quota=quota,
        follow=follow,
        assemble=assemble,
        idle=idle,
        keywords=keywords,
        quiet=quiet,
        copies=copies,
        repair=repair,
        layout=layout,
        server=chosen_cache(None, server, key) or "",
    )
    staged = on_ranks(command, started_ranks(ranks))
    if staged is not None:
        click.echo(staged)
