"""``himach run``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from himach.cli.options import (
    PATH,
    chosen_cache,
    key_option,
    keywords_option,
    quiet_option,
    ranks_option,
    required,
    server_option,
    started_ranks,
    topology_option,
)
from himach.cli.run_words import RunWords, complete_analyses, complete_parameters
from himach.io.push.address import is_engine
from himach.parallel.environment import under_launcher

__all__ = ["run"]

BEGAN = time.time()  # before the imports that a run needs, which are part of what the user waits for


@click.command(cls=RunWords)
@click.argument("analyses", nargs=-1, metavar="ANALYSIS...", shell_complete=complete_analyses)
@click.option(
    "--trajectory", "-t", "trajectories", multiple=True, type=PATH, metavar="PATH",
    help="Trajectory file, frame directory or dataset, or imd://HOST:PORT; several files follow one another.",
)  # fmt: skip
@topology_option
@keywords_option
@click.option("--start", type=int, metavar="N", help="First frame; negative counts from the end.")
@click.option("--stop", type=int, metavar="N", help="Frame before which to stop.")
@click.option("--step", type=int, metavar="N", help="Every Nth frame.")
@click.option("--frames", metavar="LIST", help="In place of these, frame numbers such as 0,5,10-20 or 0-1000:10.")
@click.option(
    "-p",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=complete_parameters,
    help="Set a parameter; of several analyses ANALYSIS.NAME=VALUE.",
)
@ranks_option
@click.option(
    "--cache", metavar="auto|off|DIR",
    help="Where a node keeps the frames it reads: its own place, nowhere, or DIR ({node}: the node's name).  "
    "[default: auto]",
)  # fmt: skip
@server_option
@key_option
@click.option(
    "--memory", metavar="SIZE",
    help="What pairs may take on a node, for example 2GB; the rest goes to its disk.  [default: a quarter of it]",
)  # fmt: skip
@click.option(
    "--pairs", type=PATH, metavar="DIR",
    help="Keep here what map() gave; a run with the same DIR maps only frames that are not there.",
)  # fmt: skip
@click.option(
    "--reuse", type=click.Choice(["auto", "always", "never"]),
    help="Kept pairs of other code, parameters or data: map again and say why, use them, never use any.  "
    "[default: auto]",
)  # fmt: skip
@click.option(
    "--max-time", metavar="TIME",
    help="End mapping in time (55m, 1h30m, HH:MM:SS), keep it, exit with 75; the same command goes on.",
)  # fmt: skip
@click.option(
    "--follow", is_flag=True,
    help="Go on while frames come to a file that grows, or to a dataset that is being pushed or staged.",
)  # fmt: skip
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="Write --out anew every N frames that come.")
@click.option(
    "--idle", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="End when no frame came for this long.  [default: never]",
)  # fmt: skip
@click.option("--dataset", metavar="NAME", help="Keep the frames of a running engine under this name.")
@click.option(
    "--buffer", metavar="SIZE",
    help="Pause the engine where the analysis is behind by more than this.  [default: 2GB]",
)  # fmt: skip
@click.option(
    "--stride-when-late", type=click.IntRange(min=1), metavar="N",
    help="Where the analysis is late, keep every Nth frame, and do not pause the engine.",
)  # fmt: skip
@click.option("--out", "-o", type=PATH, metavar="DIR", help="Write tables, plot and record here.")
@click.option(
    "--again", type=PATH, metavar="RUN.JSON",
    help="Repeat the run of this record, in place of ANALYSIS and --trajectory; other options change what they say.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Tell what this run would read and take, and do nothing of it.")
@quiet_option
@click.pass_context
def run(
    ctx: click.Context,
    analyses: tuple[str, ...],
    trajectories: tuple[Path, ...],
    topology: Path | None,
    keywords: tuple[str, ...],
    start: int | None,
    stop: int | None,
    step: int | None,
    frames: str | None,
    parameters: tuple[str, ...],
    ranks: int | None,
    cache: str | None,
    server: str | None,
    key: Path | None,
    memory: str | None,
    pairs: Path | None,
    reuse: str | None,
    max_time: str | None,
    follow: bool,
    every: int | None,
    idle: float | None,
    dataset: str | None,
    buffer: str | None,
    stride_when_late: int | None,
    out: Path | None,
    again: Path | None,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Run analyses over a trajectory.

    ANALYSIS is a built-in ('himach analyses' lists them), script.py, script.py:ClassName or module:ClassName. Several
    share one pass.

    Under srun or mpiexec each process is a rank; otherwise -n starts the ranks on this machine.
    """
    if again is None:
        required(ctx, analyses=analyses, trajectories=trajectories)
    elif analyses:
        raise click.UsageError(f"--again repeats the analyses of {again}; leave {' '.join(analyses)} out", ctx)
    elif ranks is None and not under_launcher():
        from himach.runner.again import read_record, recorded_ranks

        ranks = recorded_ranks(read_record(again))

    from himach.runner.commands import RunCommand
    from himach.runner.run import on_ranks

    command = RunCommand(
        analyses=analyses,
        parameters=parameters,
        trajectories=trajectories,
        topology=topology,
        keywords=keywords,
        start=start,
        stop=stop,
        step=step,
        frames=frames,
        cache=chosen_cache(cache, server, key),
        memory=memory,
        pairs=pairs,
        reuse=reuse,
        max_time=max_time,
        out=out,
        quiet=quiet,
        again=again,
        command=("himach", *sys.argv[1:]),
        began=BEGAN,
        dry=dry_run,
    )
    if dry_run and (follow or is_engine(trajectories)):
        raise click.UsageError("--dry-run tells of frames that are there; leave --follow and imd:// out", ctx)
    if follow or is_engine(trajectories):
        if again is not None:
            raise click.UsageError("--again repeats a run over frames that are there; leave --follow out", ctx)
        from himach.runner.commands import run_live

        asked = {"every": every, "idle": idle, "dataset": dataset, "buffer": buffer, "stride": stride_when_late}
        summary = run_live(command, asked, started_ranks(ranks))
    elif any(value is not None for value in (every, idle, dataset, buffer, stride_when_late)):
        raise click.UsageError("--every, --idle and their kin go with --follow, or with --trajectory imd://HOST:PORT")
    else:
        summary = on_ranks(command, started_ranks(ranks), keeps=(pairs or out) is not None)
    if summary is not None:
        print(summary, file=sys.stderr)
