"""``himach info`` and ``himach split``: looking at trajectories, and making frame directories."""

from __future__ import annotations

from pathlib import Path

import click

from himach.cli.command_group import Command
from himach.cli.options import (
    PATH,
    cache_option,
    chosen_cache,
    key_option,
    keywords_option,
    server_option,
    topology_option,
    trajectories_argument,
)
from himach.cli.pairs import described


@click.command(cls=Command)
@click.argument("path", type=PATH)
@topology_option
@keywords_option
@cache_option
@server_option
@key_option
def info(
    path: Path,
    topology: Path | None,
    keywords: tuple[str, ...],
    cache: str | None,
    server: str | None,
    key: Path | None,
) -> None:
    """Say what a trajectory holds and what is cached of it, or which pairs a directory keeps.

    PATH is a trajectory file, a frame directory, or the name of a staged dataset. Where it cannot be reached, this
    says what the store of this node has kept of it. PATH may also be what --pairs of a run named, or the --out of a
    run that did not end.
    """
    if path.is_dir():
        from himach.checkpoint.listing import kept_in

        if (kept := kept_in(path)) is not None:
            click.echo(described(kept))
            return

    from himach.opening.description import as_text, describe
    from himach.opening.options import parse_keywords
    from himach.parallel.quiet import quiet_ranks

    with quiet_ranks(0, command=True):
        click.echo(as_text(describe([path], topology, parse_keywords(keywords), chosen_cache(cache, server, key))))


@click.command(cls=Command)
@trajectories_argument
@click.argument("directory", type=PATH, metavar="DIR")
@topology_option
@click.option(
    "--frames-per-file", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
    help="Frames in each file; 1 gives one file a frame.",
)  # fmt: skip
@keywords_option
def split(
    trajectories: tuple[Path, ...],
    directory: Path,
    topology: Path | None,
    frames_per_file: int,
    keywords: tuple[str, ...],
) -> None:
    """Make a frame directory of a trajectory of XTC or TRR files.

    It holds numbered files of frames, a manifest and the topology;
    ``himach run ... --trajectory DIR`` then needs nothing else.
    """
    from himach.io.dataset.split import split as make
    from himach.opening.options import parse_keywords
    from himach.parallel.quiet import quiet_ranks

    with quiet_ranks(0, command=True):
        n_frames = make(
            trajectories, directory, topology, frames_per_file=frames_per_file, keywords=parse_keywords(keywords)
        )
    click.echo(f"{directory}: {n_frames} frames")
