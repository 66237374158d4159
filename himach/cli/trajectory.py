"""``himach info`` and ``himach split``: looking at trajectories, and making frame directories."""

from __future__ import annotations

from pathlib import Path

import click

from himach.cli.command_group import Command
from himach.cli.options import (
    PATH,
    cache_option,
    chosen_cache,
    ensemble_option,
    key_option,
    keywords_option,
    required,
    server_option,
    topology_option,
    trajectories_argument,
)
from himach.cli.pairs import described
from himach.cli.text import columns

#: Members of an ensemble that cannot be read and that an error names.
MOST_NAMED = 5


@click.command(cls=Command)
@click.argument("path", type=PATH, required=False)
@topology_option
@ensemble_option
@keywords_option
@cache_option
@server_option
@key_option
@click.pass_context
def info(
    ctx: click.Context,
    /,
    path: Path | None,
    topology: Path | None,
    ensemble: str | None,
    keywords: tuple[str, ...],
    cache: str | None,
    server: str | None,
    key: Path | None,
) -> None:
    """Say what a trajectory holds and what is cached of it, or which pairs a directory keeps.

    PATH is a trajectory file, a frame directory, or the name of a staged dataset. Where it cannot be reached, this
    says what the store of this node has kept of it. PATH may also be what --pairs of a run named, or the --out of a
    run that did not end. With --ensemble in place of PATH, this says what each of many simulations is.
    """
    if ensemble is not None:
        if path is not None:
            raise click.UsageError(f"--ensemble names the trajectories; leave {path} out", ctx)
        _show_members(ensemble, topology, keywords, chosen_cache(cache, server, key))
        return
    required(ctx, path=path)
    assert path is not None
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


def _show_members(ensemble: str, topology: Path | None, keywords: tuple[str, ...], cache: str | None) -> None:
    """Print what each member of an ensemble is; raises click.ClickException if one cannot be read."""
    from himach.errors import HimachError
    from himach.opening.description import describe_members
    from himach.opening.member_table import members_of
    from himach.opening.options import parse_keywords
    from himach.parallel.quiet import quiet_ranks

    with quiet_ranks(0, command=True):
        table = describe_members(members_of(ensemble, topology), parse_keywords(keywords), cache)
    bad = [(name, error) for name, error in zip(table["member"], table.pop("error"), strict=True) if error]
    shown = [["" if cell is None else str(cell) for cell in column] for column in table.values()]
    click.echo(columns([list(table), *zip(*shown, strict=True)], frozenset(range(len(table)))))
    if bad:
        more = f"; and {len(bad) - MOST_NAMED:,} more" if len(bad) > MOST_NAMED else ""
        raise HimachError("; ".join(f"member {name}: {error}" for name, error in bad[:MOST_NAMED]) + more)


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
