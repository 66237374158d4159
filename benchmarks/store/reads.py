"""Frames of 430 KB read warm and cold, beside bare reads of the same bytes."""

from pathlib import Path

import numpy as np

from ..harness.disk import forget, read_bare, read_direct
from ..harness.figures import report
from ..harness.interleave import call_in_turn, on_cores
from .frames import N_FRAMES, fill, read, segments_of

__all__ = ["cold", "warm"]

REQUEST = 4 << 20


def warm(place: Path, repeats: int) -> None:
    """Read frames that the page cache has, on one core."""
    dataset = fill(place / "warm")
    paths = segments_of(dataset)[:1]
    places = dataset.places(np.arange(N_FRAMES))
    size, count = int(places["length"][0]), int((places["segment"] == places["segment"][0]).sum())
    works = {
        "bare": lambda: read_bare(paths, size),
        "checked": lambda: read(dataset, count),
    }
    with on_cores(1):
        call_in_turn(works, 1)
        took = call_in_turn(works, max(3 * repeats, 9))
    report("warm, one core: bare preadv loop", f"{count * size / took['bare'] / 1e9:.1f} GB/s", "the limit")
    report("warm, one core", f"{took['bare'] / took['checked']:.0%}", "60 %")


def cold(place: Path, repeats: int) -> None:
    """Read frames that the page cache has not, against sequential direct reads of the same bytes."""
    dataset = fill(place / "cold")
    paths = segments_of(dataset)
    works = {
        "bare": lambda: read_direct(paths, REQUEST),
        "huge": lambda: read_direct(paths, REQUEST, huge=True),
        "direct": lambda: read(dataset, direct="on"),
        "buffered": lambda: read(dataset, direct="off"),
    }
    try:
        took = call_in_turn(works, max(repeats, 5), before=lambda: forget(paths))
    except OSError as error:
        print(f"cold reads: cannot be measured here, as the file system refuses direct reads ({error.strerror})")
        return
    size = sum(path.stat().st_size for path in paths)
    report("cold: sequential direct reads of 4 MiB, as dd's", f"{size / took['bare'] / 1e9:.1f} GB/s", "the limit")
    report("cold: the same into huge pages", f"{size / took['huge'] / 1e9:.1f} GB/s")
    report("cold, one reader with read-ahead, direct", f"{took['bare'] / took['direct']:.0%}", "92 %")
    report("cold, the same against those into huge pages", f"{took['huge'] / took['direct']:.0%}")
    buffered = took["bare"] / took["buffered"]
    report("cold, the same through the page cache (fits in memory)", f"{buffered:.0%}", "92 %")
