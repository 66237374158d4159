"""``himach bench``: figures beside a peer or the machine's limit, measured in one run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from himach.cli.command_group import CommandGroup

RANKS = click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks of himach.")
DIRECTORY = click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Scratch.  [/var/tmp]")
OUT = click.option(
    *("--out", "-o"),
    type=click.Path(path_type=Path),
    default="himach-bench",
    metavar="DIR",
    help="Results.",
    show_default=True,
)
BESIDE = click.option("--beside", metavar="PYTHON", help="Time the himach of this other Python too, in turn.")
TURNS = 3


def _repeats(default: int) -> Callable[[Any], Any]:
    return click.option("--repeats", type=click.IntRange(min=1), default=default, show_default=True)


def _only(what: str) -> Callable[[Any], Any]:
    return click.option("--only", multiple=True, metavar="NAME", help=f"Run this alone: {what}.")


def _beside(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take ``--beside PYTHON``: that Python's himach and this one run it in turns."""

    @functools.wraps(command)
    def run(beside: str | None, **options: Any) -> None:
        if beside is None:
            command(**options)
            return
        from himach.benchmarks.harness import versions

        given = {name: value if isinstance(value, tuple) else (value,) for name, value in options.items()}
        words = [f"--{name}={each}" for name, values in given.items() for each in values if each is not None]
        versions.beside(beside, [command.__name__, *words], TURNS)

    return BESIDE(run)


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure himach on this machine, beside a peer or the machine's own limit."""
    # What is timed keeps the modules that Python compiles, as where it is installed for use.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@bench.command()
@_only("residence, rmsd, rmsd-xtc, rdf-ions, rdf-water, bonds, nothing or start")
@click.option("--missing", is_flag=True, help="Run what the results in --out do not have.")
@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that in any benchmark.")
@_repeats(3)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Also workers and cores.")
@click.option("--installed", is_flag=True, help="Compare with the tools of this environment; install nothing.")
@DIRECTORY
@OUT
@BESIDE
def peers(**options: Any) -> None:
    """Compare with the tools that do the same, which it installs: time and answers; start-up."""
    from himach.benchmarks.runs import peers as benchmark

    benchmark.main(**options)


@bench.command()
@_only("frames, atoms, keys or ranks")
@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that in any sweep.")
@_repeats(3)
@RANKS
@DIRECTORY
@OUT
def scaling(**options: Any) -> None:
    """Tell how the time of a run grows with frames, atoms, keys and ranks."""
    from himach.benchmarks.runs import scaling as benchmark

    benchmark.main(**options)


@bench.command()
@click.option("--frames", type=float, default=1e9, show_default=True, help="Frames of the made-up dataset.")
@RANKS
@_repeats(7)
@_beside
def zazen(frames: float, ranks: int, repeats: int) -> None:
    """Time the protocol's rounds and decisions beside bare Allreduces of the same bytes."""
    from himach.benchmarks.parts import zazen as benchmark

    benchmark.main(int(frames), ranks, repeats)


@bench.command()
@click.option("--pairs", type=float, default=5e7, show_default=True, help="Pairs to shuffle, 1,000 a frame.")
@RANKS
@_repeats(3)
@_beside
def shuffle(pairs: float, ranks: int, repeats: int) -> None:
    """Time pairs from emission to reduce(), beside a stable sort of the same columns."""
    from himach.benchmarks.parts import shuffle as benchmark

    benchmark.main(int(pairs), ranks, repeats)


@bench.command()
@click.option("--frames", type=click.IntRange(min=1), default=2000, show_default=True, help="Frames of 1 ms of work.")
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True)
@_repeats(3)
def balance(frames: int, ranks: int, repeats: int) -> None:
    """Time the map phase where one rank is slow, beside the best division of the frames."""
    from himach.benchmarks.parts import balance as benchmark

    benchmark.main(frames, ranks, repeats)


@bench.command()
@click.option("--presence", type=float, default=2e9, show_default=True, help="Pairs without values.")
@click.option("--values", type=float, default=5e8, show_default=True, help="Pairs with values.")
@RANKS
@click.option("--memory", default="2GB", show_default=True, metavar="SIZE", help="What pairs may take, in all ranks.")
def spill(presence: float, values: float, ranks: int, memory: str) -> None:
    """Send more pairs from emission to reduce() than memory holds."""
    from himach.benchmarks.parts import shuffle as benchmark
    from himach.io.store.sizes import parse_size

    benchmark.spill(int(presence), int(values), ranks, parse_size(memory))


@bench.command()
@_repeats(3)
@_beside
def kernels(repeats: int) -> None:
    """Time each of himach.kernels on a frame of AdK, beside MDAnalysis's function on the same data."""
    from himach.benchmarks.parts import kernels as benchmark

    benchmark.main(repeats)


@bench.command()
@click.option("--frames", type=click.IntRange(min=10), default=10_000, show_default=True, help="Frames of AdK.")
@_repeats(9)
@DIRECTORY
def watching(frames: int, repeats: int, directory: Path | None) -> None:
    """Time what it costs to see that map() keeps nothing, beside the map phase without."""
    from himach.benchmarks.parts import watching as benchmark

    benchmark.main(frames, repeats, directory)


@bench.command()
@_only("start, whole, values, grown or reduced")
@click.option("--frames", type=click.IntRange(min=100), default=10_000, show_default=True, help="Frames of AdK.")
@click.option("--values", type=float, default=5e8, show_default=True, help="Pairs with values that a run keeps.")
@click.option("--kept", type=float, default=1e8, show_default=True, help="Kept pairs for another reduce().")
@RANKS
@_repeats(5)
@DIRECTORY
def pairs(
    only: tuple[str, ...], frames: int, values: float, kept: float, ranks: int, repeats: int, directory: Path | None
) -> None:
    """Time what keeping pairs costs a run, and what it saves the next."""
    from himach.benchmarks.runs import pairs as benchmark

    benchmark.main(only, frames, int(values), int(kept), ranks, repeats, directory)


@bench.command()
@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK.")
@click.option("--runs", type=click.IntRange(min=1), default=1000, show_default=True, help="Runs over the same ranks.")
@RANKS
@DIRECTORY
def staying(frames: int, runs: int, ranks: int, directory: Path | None) -> None:
    """Time runs over ranks that stay, and tell what many of them leave behind."""
    from himach.benchmarks.runs import staying as benchmark

    benchmark.main(frames, runs, ranks, directory)


@bench.command()
@_only("warm, cold, mixed, small, runs, push or server")
@_repeats(5)
@DIRECTORY
@_beside
def cache(only: tuple[str, ...], repeats: int, directory: Path | None) -> None:
    """Time the frame store beside the disk and memory, runs with and without it, and pushing beside dd."""
    from himach.benchmarks.store import cache as benchmark

    benchmark.main(only, repeats, directory)


@bench.command()
@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK.")
@click.option("--trajectory", metavar="PATH", help="A further XTC trajectory to pack.")
@_repeats(5)
@DIRECTORY
@_beside
def packed(frames: int, trajectory: str | None, repeats: int, directory: Path | None) -> None:
    """Measure packed frames beside the XTC, memory, and raw frames from a cold disk."""
    from himach.benchmarks.store import packed as benchmark

    benchmark.main(frames, repeats, trajectory, directory)
