"""``himach bench cache``: the frame store beside the limits of the machine, and runs with and without it.

One line a figure, with its bar. Figures are ratios of medians within one run, both sides over the same bytes and in
turns. What cannot be measured here (no direct I/O) is said instead of printed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, beside, only, repeats
from .mixed import mixed
from .push import push
from .reads import cold, warm
from .runs import runs
from .served import server
from .small import small

__all__ = ["PARTS", "main"]

#: The parts by name; each is given a scratch folder and the repeats.
PARTS: dict[str, Callable[[Path, int], None]] = {
    "warm": warm,
    "cold": cold,
    "mixed": mixed,
    "small": small,
    "runs": runs,
    "push": push,
    "server": server,
}
SPACE_BYTES = 4 << 30


@only("warm, cold, mixed, small, runs, push or server")
@repeats(5)
@DIRECTORY
@beside("cache")
def main(only: Sequence[str], repeats: int, directory: Path | None) -> None:
    """Time the frame store beside the disk and memory, runs with and without it, and pushing beside dd."""
    for name in only or PARTS:
        with scratch(directory, SPACE_BYTES) as place:
            PARTS[name](place, repeats)
