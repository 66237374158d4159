"""``himach info``, ``split``, ``convert`` and ``stage``: show trajectories, write them anew, and store them."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from himach.cli import shared
from himach.cli.command_group import Command
from himach.cli.run import describe_defaults
from himach.cli.shared import columns, echo, format_minute
from himach.conversion.options import ConvertOptions
from himach.conversion.target_files import removing_leftovers
from himach.io.datasets.request import TransformOptions
from himach.ranks.communicator import World
from himach.ranks.launch.preload import preload
from himach.ranks.quiet import quiet_ranks
from himach.runner.options import parse_keywords
from himach.staging.options import StageOptions

if TYPE_CHECKING:
    from himach.checkpoint.listing import KeptFrames


def _convert(world: World, options: ConvertOptions) -> str | None:
    """Convert as one of the ranks; return the result as text on rank 0, unless quiet."""
    with quiet_ranks(world.comm.rank, command=True):
        preload()
        from himach.conversion.convert import convert_here

        result = convert_here(world, options)
        return None if options.quiet or world.comm.rank else str(result)


@click.command(cls=Command)
@click.argument("path", type=shared.SOURCE, required=False)
@shared.topology_option
@shared.keywords_option
@shared.cache_option
@shared.server_option
@shared.key_option
def info(
    path: Path | None,
    topology: Path | None,
    keywords: tuple[str, ...],
    cache: str | None,
    server: str | None,
    key: Path | None,
) -> None:
    """Say what a trajectory holds and what is cached of it, or which pairs a directory keeps.

    PATH is a trajectory file, a frame directory, or the name of a staged dataset. Where it cannot be reached, this
    says what the store of this node has kept of it. PATH may also be what --pairs of a run named, or the --out of a
    run that did not end. Without PATH, this says which defaults options have.
    """
    if path is None:
        echo(describe_defaults())
        return
    if path.is_dir():
        from himach.checkpoint.listing import find_kept_frames

        if (place := find_kept_frames(path)) is not None:
            echo(_describe_pairs(place))
            return

    from himach.io.datasets.description import as_text, describe

    with quiet_ranks(0, command=True):
        echo(as_text(describe(path, topology, parse_keywords(keywords), shared.chosen_cache(cache, server, key))))


def _describe_pairs(place: "KeptFrames") -> str:
    """Return a description of kept pairs, as lines."""
    from himach.checkpoint.listing import entries, format_frames
    from himach.io.store.sizes import show_size

    lines = [("pairs", str(place.path if place.out is None else place.out))]
    if place.holder:
        lines += [("in use", f"a run is under way: {place.holder}")]
    elif place.out is not None:
        lines += [("unfinished", "a run did not end; the same command goes on from what is here")]
    for item in entries(place.path):
        lines += [
            ("", ""),
            *([("member", item.member)] if item.member else []),
            ("analysis", f"{item.analysis}, generation {item.generation}"),
            ("frames", format_frames(item)),
            ("pairs", f"{item.pairs:,}"),
            ("size", f"{show_size(item.nbytes)}, in parts: {item.parts:,}"),
            ("last used", format_minute(item.used)),
            *(("trajectory", path) for path in item.trajectory),
            *(("parameter", f"{name} = {text}") for name, text in item.parameters.items()),
            *(("since then", text) for text in item.differs),
            *(("bad", text) for text in item.bad),
        ]
    return columns(lines, left=frozenset([0, 1]))


@click.command(cls=Command)
@shared.trajectories_argument
@click.argument("directory", type=shared.PATH, metavar="DIR")
@shared.topology_option
@click.option(
    "--frames-per-file", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
    help="Frames in each file; 1 gives one file a frame.",
)  # fmt: skip
@shared.keywords_option
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
    from himach.conversion.split import split as split_trajectory

    with quiet_ranks(0, command=True):
        n_frames = split_trajectory(
            trajectories, directory, topology, frames_per_file=frames_per_file, keywords=parse_keywords(keywords)
        )
    echo(f"{directory}: {n_frames} frames")


@click.command(cls=Command)
@click.argument("trajectories", nargs=-1, type=shared.SOURCE, metavar="TRAJ...")
@shared.topology_option
@shared.ensemble_option
@shared.dataclass_options(TransformOptions)
@shared.dataclass_options(ConvertOptions)
@shared.cache_option
@shared.ranks_option
@shared.keywords_option
@shared.quiet_option
@click.pass_context
def convert(
    ctx: click.Context, /, keywords: tuple[str, ...], ranks: int | None, oversubscribe: bool, **options: Any
) -> None:
    """Write a trajectory anew: whole, without jumps, centred, wrapped, fitted, in that order and one pass of all ranks.

    The bytes are the same for any number of ranks. The topology of the written atoms is written beside them.
    With --ensemble in place of TRAJ, {member} in the names of files stands for the name of each of many simulations.
    """
    from himach.runner.commands import on_ranks

    shared.check_required(ctx, trajectories=options["trajectories"] or options["ensemble"])
    options["transform"] = shared.take_transform(options)
    values = {name: value for name, value in options.items() if value is not None}
    request = ConvertOptions(**values, keywords=parse_keywords(keywords))
    started = shared.started_ranks(ranks, oversubscribe)
    command = partial(_convert, options=request)
    with removing_leftovers(request.files if started else []):
        message = on_ranks(command, started)
    if message is not None:
        echo(message)


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
    from himach.runner.commands import on_ranks, stage_command

    values = {name: value for name, value in options.items() if value is not None}
    request = StageOptions(
        **values, keywords=parse_keywords(keywords), server=shared.chosen_cache(None, server, key) or ""
    )
    staged = on_ranks(partial(stage_command, request, assemble), shared.started_ranks(ranks, oversubscribe))
    if staged is not None:
        echo(staged)
