"""By which launches another is followed: `Followed`, kept beside its slices, as those of the later ones may be gone.

What a launch has pushed behind the first frame of a later one is of a branch that the simulation has left. The later
one's slices tell that as long as they are there, and are dropped when they have become frames: so it is attached to the
earlier one's, in every store that has some, before any frame of the later one is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.io.store.store import Dataset, StoreSystemError

__all__ = ["Followed", "Since", "known", "merged", "remember", "set_aside"]

Numbers = npt.NDArray[np.int64]

#: Name of the attachment.
FOLLOWED = "followed"
_LINE = re.compile(rb"([0-9a-f]{16}) (\d{1,18}) (\d{1,18})", re.ASCII)


@dataclass(frozen=True)
class Since:
    """From when on there is a later launch.

    Attributes
    ----------
    frame
        Its first.
    second
        In which it began on this node, or was first known of there. What the earlier one seems to have written from
        then on is of another start, which has said the same of itself, or nothing.
    """

    frame: int
    second: int


#: The later launches, as `himach.io.push.slice_kinds.Kind` tells them.
Followed = Mapping[bytes, Since]


def merged(*all_known: Followed) -> Followed:
    """Return what all of these know; of a launch the lowest frame and second that any has."""
    both: dict[bytes, Since] = {}
    for one in all_known:
        for launch, since in one.items():
            had = both.get(launch, since)
            both[launch] = Since(min(had.frame, since.frame), min(had.second, since.second))
    return both


def known(dataset: Dataset) -> Followed:
    """Return what is known of the launch that has pushed these slices."""
    lines = (_LINE.fullmatch(line) for line in (dataset.attachment(FOLLOWED) or b"").splitlines())
    return merged(*({told[1]: Since(int(told[2]), int(told[3]))} for told in lines if told is not None))


def remember(datasets: Sequence[Dataset], followed: Followed) -> None:
    """Attach to the slices of a launch, of any ranks of one store, by which it is followed; it is on disk then.

    Raises
    ------
    StoreSystemError
        The store cannot be written to.
    """
    if not followed or all(merged(had := known(dataset), followed) == had for dataset in datasets):
        return
    with datasets[0].store.locked():  # others may do it, too, and know of others
        for dataset in datasets:
            both = merged(had := known(dataset), followed)
            if both == had:
                continue
            lines = (b"%s %d %d\n" % (launch, one.frame, one.second) for launch, one in sorted(both.items()))
            try:
                dataset.attach(FOLLOWED, b"".join(lines))
                _sync(dataset)
            except StoreSystemError:
                if dataset.place() is not None:  # else somebody has deleted the slices
                    raise


def _sync(dataset: Dataset) -> None:
    """Have the names of a dataset's files on disk."""
    try:
        directory = os.open(dataset.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreSystemError(f"{dataset.path}: {error.strerror}") from None


def set_aside(dataset: Dataset, numbers: Numbers, followed: Followed) -> tuple[Numbers, Numbers]:
    """Return of slices, ascending, those that are meant, and those that were left behind by a later launch."""
    if not followed:
        return numbers, numbers[:0]
    at = np.searchsorted(numbers, min(since.frame for since in followed.values()))
    behind = numbers[at:]
    begun = _begun(dataset, behind, min(since.second for since in followed.values()))
    left = np.zeros(len(behind), np.bool_)
    for since in followed.values():
        left |= (behind >= since.frame) & (begun < since.second)
    return np.concatenate([numbers[:at], behind[~left]]), behind[left]


def _begun(dataset: Dataset, numbers: Numbers, since: int) -> Numbers:
    """Return the seconds in which the segments of slices were begun, 0 for all if that was before `since`."""
    last = max((one["id"] >> 32 for one in dataset.segments() if one["frames"]), default=0)
    if last < since:
        return np.zeros(len(numbers), np.int64)
    return np.array([0 if place is None else place[0] >> 32 for place in dataset.locate(numbers)], np.int64)
