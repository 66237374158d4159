"""``himach stage``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from himach.cli.options import (
    PATH,
    cache_option,
    keywords_option,
    quiet_option,
    quota_option,
    ranks_option,
    trajectories_argument,
)
from himach.cli.ranks import started_elsewhere
from himach.parallel.environment import promised_rank

__all__ = ["stage"]


@click.command()
@trajectories_argument
@click.option("--topology", "-s", type=PATH, metavar="PATH", help="Topology file, kept with the frames.")
@click.option("--dataset", metavar="NAME", help="Name to stage under; default: the trajectory's absolute path.")
@click.option(
    "--placement", type=click.Choice(["spread", "runs"]), default="spread", show_default=True,
    help="Frames round-robin over the nodes, or neighbours together.",
)  # fmt: skip
@cache_option
@quota_option
@click.option("--follow", is_flag=True, help="Keep up with a trajectory that is being written, until Ctrl-C.")
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
    follow: bool,
    idle: float | None,
    ranks: int | None,
    keywords: tuple[str, ...],
    quiet: bool,
) -> None:
    """Store a trajectory's frames on the local disks of the nodes that will analyse it.

    Under srun or mpiexec every rank reads its part and stores it on its own node; alone, this fills the local store.
    Interrupted, it goes on where it was when it is started again.
    """
    if started_elsewhere(ranks):
        return

    from himach.io.store.sizes import parse_size
    from himach.parallel.quiet import quiet_ranks
    from himach.runner.job import parse_keywords
    from himach.runner.run import on_all_ranks
    from himach.runner.staging import StageJob
    from himach.runner.staging import stage as carry_out

    with quiet_ranks(promised_rank(), command=True):
        job = StageJob(
            trajectories=trajectories,
            topology=topology,
            keywords=parse_keywords(keywords),
            dataset=dataset,
            placement=placement,
            cache=cache or "auto",
            quota=None if quota is None else parse_size(quota),
            follow=follow,
            idle=idle,
            quiet=quiet,
        )
        staged = on_all_ranks(lambda world: carry_out(world, job))
        if not quiet:
            click.echo(str(staged))
