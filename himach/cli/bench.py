"""``himach bench``: figures beside a peer or the machine's limit, measured in one run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from himach.cli.command_group import CommandGroup

__all__ = ["bench"]


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure himach on this machine, beside a peer or the machine's own limit."""
    # What is timed keeps the modules that Python compiles, as where it is installed for use.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@bench.command()
@click.option("--only", multiple=True, metavar="NAME", help="Run this benchmark, and keep the results of the others.")
@click.option("--missing", is_flag=True, help="Run what the results in --out do not have.")
@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that in any benchmark.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Also workers and cores.")
@click.option("--installed", is_flag=True, help="Compare with the tools of this environment; install nothing.")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Where to make stores.  [/var/tmp]")
@click.option("--out", "-o", type=click.Path(path_type=Path), metavar="DIR", help="Results.  [./himach-bench]")
def peers(
    only: tuple[str, ...],
    missing: bool,
    frames: int | None,
    repeats: int,
    ranks: int,
    installed: bool,
    directory: Path | None,
    out: Path | None,
) -> None:
    """Compare with the tools that do the same, which it installs: time and answers.

    Benchmarks: residence, rmsd, rdf-ions, rdf-water, bonds, nothing, start.
    """
    from himach.bench import peers as benchmark

    benchmark.main(only, frames, repeats, ranks, out, directory, missing, installed)


@bench.command()
@click.option("--only", multiple=True, metavar="NAME", help="Run this sweep: frames, atoms, keys or ranks.")
@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that in any sweep.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Where they are not varied.")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Where to make stores.  [/var/tmp]")
@click.option("--out", "-o", type=click.Path(path_type=Path), metavar="DIR", help="Results.  [./himach-bench]")
def scaling(
    only: tuple[str, ...],
    frames: int | None,
    repeats: int,
    ranks: int,
    directory: Path | None,
    out: Path | None,
) -> None:
    """Tell how the time of a run grows with frames, atoms, keys and ranks."""
    from himach.bench import scaling as benchmark

    benchmark.main(only, frames, repeats, ranks, out, directory)


@bench.command()
@click.option("--frames", type=float, default=1e9, show_default=True, help="Frames of the made-up dataset.")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True)
def zazen(frames: float, ranks: int, repeats: int) -> None:
    """Time the protocol's rounds and decisions beside bare Allreduces of the same bytes."""
    from himach.bench import zazen as benchmark

    benchmark.main(int(frames), ranks, repeats)


@bench.command()
@click.option("--pairs", type=float, default=5e7, show_default=True, help="Pairs to shuffle, 1,000 a frame.")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
def shuffle(pairs: float, ranks: int, repeats: int) -> None:
    """Time pairs from emission to reduce(), beside a stable sort of the same columns."""
    from himach.bench import shuffle as benchmark

    benchmark.main(int(pairs), ranks, repeats)


@bench.command()
@click.option("--frames", type=click.IntRange(min=1), default=2000, show_default=True, help="Frames of 1 ms of work.")
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
def balance(frames: int, ranks: int, repeats: int) -> None:
    """Time the map phase where one rank is slow, beside the best division of the frames."""
    from himach.bench import balance as benchmark

    benchmark.main(frames, ranks, repeats)


@bench.command()
@click.option("--presence", type=float, default=2e9, show_default=True, help="Pairs without values.")
@click.option("--values", type=float, default=5e8, show_default=True, help="Pairs with values.")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--memory", default="2GB", show_default=True, metavar="SIZE", help="What pairs may take, all ranks together."
)
def spill(presence: float, values: float, ranks: int, memory: str) -> None:
    """Send more pairs from emission to reduce() than memory holds."""
    from himach.bench import shuffle as benchmark
    from himach.io.store.sizes import parse_size

    benchmark.spill(int(presence), int(values), ranks, parse_size(memory))


@bench.command()
@click.option("--frames", type=int, default=1000, show_default=True, help="Frames of AdK (47,681 atoms).")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
def rmsd(frames: int, ranks: int, repeats: int) -> None:
    """Time C-alpha RMSD from XTC as a whole process, beside MDAnalysis with as many workers."""
    from himach.bench import rmsd as benchmark

    benchmark.main(frames, ranks, repeats)


@bench.command()
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
def kernels(repeats: int) -> None:
    """Time each of himach.kernels on a frame of AdK, beside MDAnalysis's function on the same data."""
    from himach.bench import kernels as benchmark

    benchmark.main(repeats)


@bench.command()
@click.option("--repeats", type=click.IntRange(min=1), default=9, show_default=True)
def start(repeats: int) -> None:
    """Time 'himach --help' and a run of ten cached frames, beside what Python and its libraries take to start."""
    from himach.bench import start as benchmark

    benchmark.main(repeats)


@bench.command()
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--directory", metavar="DIR", help="Where to write.  [default: /var/tmp]")
def cache(repeats: int, directory: str | None) -> None:
    """Time the frame store beside the disk and memory, and runs with and without it."""
    from himach.bench import cache as store
    from himach.bench import push as pushing
    from himach.bench import runs

    store.main(repeats, directory)
    runs.main(repeats=repeats, directory=directory)
    pushing.main(repeats=repeats, directory=directory)


@bench.command()
@click.option("--frames", type=click.IntRange(min=1), default=600, show_default=True, help="Frames of 430 KB.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--directory", metavar="DIR", help="Where to write.  [default: /var/tmp]")
def push(frames: int, repeats: int, directory: str | None) -> None:
    """Time frames pushed over loopback and kept durably, beside dd of the same bytes."""
    from himach.bench import push as benchmark

    benchmark.main(frames, repeats, directory)


@bench.command()
@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK.")
@click.option("--trajectory", metavar="PATH", help="A further XTC trajectory to pack.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--directory", metavar="DIR", help="Where to write.  [default: /var/tmp]")
def packed(frames: int, trajectory: str | None, repeats: int, directory: str | None) -> None:
    """Measure packed frames beside the XTC, memory, and raw frames from a cold disk."""
    from himach.bench import packed as benchmark

    benchmark.main(frames, repeats, trajectory, directory)
