"""``himach run``."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from himach.cli.options import (
    PATH,
    chosen_cache,
    ensemble_option,
    key_option,
    keywords_option,
    options_of,
    quiet_option,
    ranks_option,
    required,
    server_option,
    started_ranks,
    topology_option,
)
from himach.cli.run_words import RunWords, complete_analyses, complete_parameters
from himach.errors import printable_lines
from himach.io.push.address import is_engine
from himach.opening.options import LiveOptions, RunOptions
from himach.output.figures.formats import figure_formats
from himach.parallel.environment import promised_rank, under_launcher

__all__ = ["run"]

BEGAN = time.time()  # before the imports that a run needs, which are part of what the user waits for


def _engines(ensemble: Path) -> bool:
    """Tell whether members of an ensemble are running engines."""
    from himach.opening.member_table import has_engines

    return has_engines(ensemble)


def _check_files(analyses: tuple[str, ...], ctx: click.Context) -> None:
    """Refuse files that stand where analyses do, before anything else is missed."""
    files = [word for word in analyses if ":" not in word and Path(word).suffix not in ("", ".py")]
    if files:
        raise click.UsageError(
            f"{', '.join(files)} stands where analyses do: a trajectory is named by -t PATH, a topology by -s PATH", ctx
        )


def _check_without_place(given: Mapping[str, Any], again: bool, ctx: click.Context) -> None:
    """Refuse options of files where none are written, which would change nothing."""
    for place, names in {"out": ("table", "figure", "units", "force"), "pairs": ("reuse",)}.items():
        options = [f"--{name}" for name in names if name in given]
        recorded = place == "pairs" and again  # a record may name them
        if options and not recorded and "out" not in given and place not in given:
            raise click.UsageError(f"{options[0]} goes with --{place}, which says where files are written", ctx)


def _draw(formats: Sequence[str], wait: Callable[[], bytes]) -> bytes:
    """Import Matplotlib while the ranks read, and draw what they found."""
    from himach.output.figures.drawing_process import draw_when_asked

    return draw_when_asked(wait, formats)


@click.command(cls=RunWords)
@click.argument("analyses", nargs=-1, metavar="ANALYSIS...", shell_complete=complete_analyses)
@click.option(
    "--trajectory", "-t", "trajectories", multiple=True, type=PATH, metavar="PATH",
    help="Trajectory file, frame directory or dataset, or imd://HOST:PORT; several files follow one another.",
)  # fmt: skip
@topology_option
@ensemble_option
@keywords_option
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
@options_of(RunOptions)
@click.option(
    "--follow", is_flag=True,
    help="Go on while frames come to a file that grows, or to a dataset that is being pushed or staged.",
)  # fmt: skip
@options_of(LiveOptions)
@click.option(
    "--again", type=PATH, metavar="RUN.JSON",
    help="Repeat the run of this record, in place of ANALYSIS and --trajectory; other options change what they say.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Tell what this run would read and take, and do nothing of it.")
@quiet_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    analyses: tuple[str, ...],
    parameters: tuple[str, ...],
    keywords: tuple[str, ...],
    ranks: int | None,
    oversubscribe: bool,
    cache: str | None,
    server: str | None,
    key: Path | None,
    follow: bool,
    again: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run analyses over a trajectory.

    ANALYSIS is a built-in ('himach analyses' lists them), script.py, script.py:ClassName or module:ClassName. Several
    share one pass.

    Under srun or mpiexec each process is a rank; otherwise -n starts the ranks on this machine.
    """
    live = LiveOptions(**{each.name: options.pop(each.name) for each in fields(LiveOptions)})
    given = {"cache": chosen_cache(cache, server, key), **options}
    given = {name: value for name, value in given.items() if value not in (None, ()) and value is not False}
    if again is None:
        _check_files(analyses, ctx)
        required(ctx, analyses=analyses, trajectories=given.get("trajectories") or given.get("ensemble"))
    elif analyses:
        raise click.UsageError(f"--again repeats the analyses of {again}; leave {' '.join(analyses)} out", ctx)
    elif ranks is None and not under_launcher():
        from himach.runner.rerun import read_record, recorded_ranks

        ranks = recorded_ranks(read_record(again))
    _check_without_place(given, again is not None, ctx)

    helper = None
    if "out" in given and not dry_run and promised_rank() == 0:
        from himach.launch.helper import helping

        ready = partial(_draw, figure_formats(given.get("figure", "png")))
        helper = ctx.with_resource(helping(ready))  # before imports that start threads
    from himach.runner.commands import RunCommand
    from himach.runner.run import on_ranks

    given["command"] = ("himach", *sys.argv[1:])
    command = RunCommand(analyses, parameters, keywords, given, again, BEGAN, dry=dry_run, helper=helper)
    comes = follow or is_engine(given.get("trajectories", ())) or ("ensemble" in given and _engines(given["ensemble"]))
    if dry_run and comes:
        raise click.UsageError("--dry-run tells of frames that are there; leave --follow and imd:// out", ctx)
    if comes:
        if again is not None:
            raise click.UsageError("--again repeats a run over frames that are there; leave --follow out", ctx)
        from himach.runner.commands import follow as follow_frames

        summary = follow_frames(command, live, started_ranks(ranks, oversubscribe))
    elif live:
        raise click.UsageError("--every, --idle and their kin go with --follow, or with --trajectory imd://HOST:PORT")
    else:
        started = started_ranks(ranks, oversubscribe)
        summary = on_ranks(command, started, keeps=command.keeps)
        if started:  # nothing of the user's has run here, so that nobody need look for what is to be closed
            gc.freeze()
    if summary is not None:
        print(printable_lines(summary), file=sys.stderr)
