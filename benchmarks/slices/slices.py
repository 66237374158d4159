"""``himach bench slices``: pushing, finding, assembling, and all of them killed at random."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from ..harness.options import DIRECTORY, count, only, repeats

__all__ = ["main"]

N_ATOMS = 47_681
SMALL_ATOMS = 85  # of a rank: 1 KB a slice
SMALL_FRAMES = 400  # for each of the larger: 80 MB a rank
ASSEMBLED = 5  # times as many, so that opening is not what is measured
PARTS = ("push", "small", "find", "assemble", "kills")


@only("push, small, find, assemble or kills")
@click.option(
    "-n",
    "ranks",
    multiple=True,
    type=click.IntRange(min=2),
    metavar="RANKS",
    default=(2, 4, 8),
    help="This alone.  [2, 4, 8]",
)
@click.option("--frames", type=click.IntRange(min=10), default=200, show_default=True, help="Frames of AdK's size.")
@click.option("--found", type=count, default="1e8", show_default=True, help="Frames among which whole ones are found.")
@click.option("--kills", type=click.IntRange(min=1), default=200, show_default=True, help="Of writers and the others.")
@repeats(5)
@DIRECTORY
def main(only: Sequence[str], ranks: Sequence[int], frames: int, found: int, kills: int, repeats: int,
         directory: Path | None) -> None:  # fmt: skip
    """Time slices pushed by ranks, found and assembled, beside files; kill all of that at random, and count."""
    with tempfile.TemporaryDirectory(prefix="himach-slices-", dir=directory or "/var/tmp") as scratch:
        place = Path(scratch)
        works: dict[str, Callable[[], None]] = {
            "push": lambda: _push(place, ranks, frames, repeats),
            "small": lambda: _small(place, ranks, frames, repeats),
            "find": lambda: _find(place, found, repeats),
            "assemble": lambda: _assemble(place, 3 * frames, repeats),
            "kills": lambda: _kill(place, kills),
        }
        for name, work in works.items():
            if not only or name in only:
                work()


def _push(place: Path, ranks: Sequence[int], frames: int, repeats: int) -> None:
    from .pushing import pushing

    for n in ranks:
        pushing(place, n, N_ATOMS, (n * frames, frames), repeats, (0.85, 2))


def _small(place: Path, ranks: Sequence[int], frames: int, repeats: int) -> None:
    from .pushing import pushing

    for n in ranks:
        pushing(place, n, SMALL_ATOMS * n, (SMALL_FRAMES * frames, 10 * frames), repeats, (0, 10))


def _find(place: Path, frames: int, repeats: int) -> None:
    from .finding import finding

    finding(place / "finding", frames, 16, repeats)


def _assemble(place: Path, frames: int, repeats: int) -> None:
    from .assembling import assembling

    assembling(place, ASSEMBLED * frames, repeats)


def _kill(place: Path, kills: int) -> None:
    from .kills import main as kill

    kill(place / "kills", kills)
