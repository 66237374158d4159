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
@click.option("--frames", type=float, help="Frames of the made-up dataset [default: 1e9]; in each store [1e8].")
@click.option("--stores", is_flag=True, help="From stores on disk, one for each rank, opened anew each time.")
@RANKS
@_repeats(7)
@_beside
def zazen(frames: float | None, stores: bool, ranks: int, repeats: int) -> None:
    """Time the protocol's rounds and decisions beside bare Allreduces of the same bytes."""
    if stores:
        from himach.benchmarks.parts import stores as of_stores

        of_stores.main(int(frames or 1e8), ranks, repeats)
        return
    from himach.benchmarks.parts import zazen as benchmark

    benchmark.main(int(frames or 1e9), ranks, repeats)


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
@click.option("--frames", type=float, default=1e7, show_default=True, help="Made-up frames, of one pair each.")
@RANKS
@click.option("--uneven", is_flag=True, help="Times and boxes that follow no rule.")
@click.option("--memory", default="1GB", show_default=True, metavar="SIZE", help="What pairs may take, in all ranks.")
def stamps(frames: float, ranks: int, uneven: bool, memory: str) -> None:
    """Tell what memory a rank takes for many frames of few pairs."""
    from himach.benchmarks.parts import stamps as benchmark
    from himach.io.store.sizes import parse_size

    benchmark.main(int(frames), ranks, uneven, parse_size(memory))


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
@click.option("-n", "ranks", multiple=True, type=click.IntRange(min=1), metavar="RANKS", help="This alone.  [1, 4, 16]")
@_repeats(5)
@DIRECTORY
def start(ranks: tuple[int, ...], repeats: int, directory: Path | None) -> None:
    """Time a run's start, from the command to the last rank's first map(), and count the files a rank opens."""
    from himach.benchmarks.runs import start as benchmark

    benchmark.main(ranks, repeats, directory)


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
@_only("dcd, computed or many")
@click.option("--frames", type=float, default=1e8, show_default=True, help="Frames of one atom that a run reads.")
@click.option("--ranks", type=click.IntRange(min=1), default=4, show_default=True, help="Ranks, each a node.")
@click.option("--many", type=click.IntRange(min=1), default=64, show_default=True, help="Ranks of one node.")
@DIRECTORY
def billion(only: tuple[str, ...], frames: float, ranks: int, many: int, directory: Path | None) -> None:
    """Run over very many frames: memory of ranks, and the time until map() begins."""
    from himach.benchmarks.runs import billion as benchmark

    benchmark.main(int(frames), only, ranks, many, directory)


@bench.command()
@_only("lammps or stream")
@click.option("--steps", type=click.IntRange(min=100), default=4000, show_default=True, help="Steps of LAMMPS.")
@click.option("--frames", type=click.IntRange(min=100), default=2000, show_default=True, help="Frames of the stream.")
@RANKS
@_repeats(3)
@DIRECTORY
def live(only: tuple[str, ...], steps: int, frames: int, ranks: int, repeats: int, directory: Path | None) -> None:
    """Tell what runs over the frames of a running engine cost it, and how soon there is a table of a fast stream."""
    from himach.benchmarks.runs import live as benchmark

    benchmark.main(only, steps, frames, ranks, repeats, directory)


@bench.command()
@_only("push, small, find, assemble or kills")
@click.option("-n", "ranks", multiple=True, type=click.IntRange(min=2), metavar="RANKS", help="This alone.  [2, 4, 8]")
@click.option("--frames", type=click.IntRange(min=10), default=200, show_default=True, help="Frames of AdK's size.")
@click.option("--found", type=float, default=1e8, show_default=True, help="Frames among which whole ones are found.")
@click.option("--kills", type=click.IntRange(min=1), default=200, show_default=True, help="Of writers and the others.")
@_repeats(5)
@DIRECTORY
def slices(
    only: tuple[str, ...], ranks: tuple[int, ...], frames: int, found: float, kills: int, repeats: int,
    directory: Path | None,
) -> None:  # fmt: skip
    """Time slices pushed by ranks, found and assembled, beside files; kill all of that at random, and count."""
    from himach.benchmarks.slices import slices as benchmark

    benchmark.main(only, ranks or (2, 4, 8), frames, int(found), kills, repeats, directory)


@bench.command()
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), default="machine.toml", show_default=True, metavar="FILE",
    help="What 'himach plan --machine' reads.",
)  # fmt: skip
@click.option(
    "--origin", type=click.Path(path_type=Path, exists=True), metavar="PATH", help="A large file of the origin."
)
@DIRECTORY
def machine(out: Path, origin: Path | None, directory: Path | None) -> None:
    """Measure what a plan must know: disk, cores, memory, origin; the network between nodes, else loopback."""
    from himach.benchmarks.runs import machine as benchmark

    benchmark.main(out, origin, directory)


@bench.command()
@_only("LightMap, HeavyMap or HeavyReduce")
@click.option(
    "--fitted", type=click.IntRange(min=1), default=3, show_default=True, help="Repeats of what is fitted to."
)
@click.option(
    "--short", is_flag=True, help="One turn without Zazen's rounds, in a few minutes: no spread is known then."
)
@click.option("--minutes", type=click.FloatRange(min=0), metavar="N", help="Begin no turn that would not end by then.")
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Add what is measured here, as it comes; what is there is not measured again.",
)
@click.option("--out", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Leave predictions and errors here.")
@_repeats(5)
@DIRECTORY
def plan(
    only: tuple[str, ...],
    fitted: int,
    short: bool,
    minutes: float | None,
    records: Path | None,
    out: Path | None,
    repeats: int,
    directory: Path | None,
) -> None:
    """Predict runs on 8 and 16 virtual hosts from such on 1 to 4, and measure them; Zazen's rounds on up to 64."""
    from himach.benchmarks.runs import planned as benchmark

    benchmark.main(repeats, fitted, only, short, minutes, records, out, directory)


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


@bench.command()
@click.option("--frames", type=click.IntRange(min=10), default=10_000, show_default=True, help="Frames of AdK.")
@_repeats(5)
@DIRECTORY
@_beside
def layout(frames: int, repeats: int, directory: Path | None) -> None:
    """Read few atoms of all frames from a cold disk, time-major beside frame by frame."""
    from himach.benchmarks.store import layout as benchmark

    benchmark.main(frames, repeats, directory)


@bench.command()
@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that.")
@_repeats(3)
@_only("RMSD, InterRDF, HydrogenBondAnalysis, Ramachandran, DSSP or reading")
@RANKS
@DIRECTORY
def mdanalysis(**options: Any) -> None:
    """MDAnalysis's own analyses on ranks, beside its multiprocessing; reading by himach:// beside XTC."""
    from himach.benchmarks.runs import mdanalysis as benchmark

    benchmark.main(**options)


@bench.command()
@_only("tools or speed")
@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK to read.")
@click.option("--installed", is_flag=True, help="Compare with the tools of this environment; install nothing.")
@_repeats(7)
@DIRECTORY
def mount(only: tuple[str, ...], frames: int, installed: bool, repeats: int, directory: Path | None) -> None:
    """Read mounted files by other tools, beside the XTC; tell how fast they are read."""
    from himach.benchmarks.store import mounted as benchmark

    benchmark.main(frames, repeats, installed, only, directory)


@bench.command()
@_only("datasets, copies or reading")
@click.option("--servers", type=click.IntRange(min=13), default=64, show_default=True, help="Servers to ask.")
@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK to read.")
@_repeats(5)
@DIRECTORY
@_beside
def names(only: tuple[str, ...], servers: int, frames: int, repeats: int, directory: Path | None) -> None:
    """Measure one name space of many servers, copies of frames, and reading from another machine."""
    from himach.benchmarks.store import names as benchmark

    benchmark.main(only, servers, frames, repeats, directory)
