"""Copies of frames that cannot be read: found, and written anew from the origin where no other one is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError
from himach.frame import RawFrame
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.dataset.origin_watch import at_rest
from himach.io.frame_source import ReadOptions
from himach.io.store.store import Dataset
from himach.io.trajectory.origin import Origin, open_origin
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import Communicator
from himach.staging.copy_plan import Flags, Numbers

__all__ = ["Held", "from_origin", "look", "own", "unreadable"]

READ_AT_ONCE = 64  # frames that are held in memory
DAMAGED = ("damaged", "error of the disk")  # reasons of a miss that will be one again


@dataclass(frozen=True)
class Held:
    """What the nodes hold of a span natively, each as flags of its frames: read well, and not."""

    good: list[Flags]
    bad: list[Flags]

    @property
    def lost(self) -> Flags:
        """The frames of which there are only damaged copies."""
        return np.asarray(np.any(self.bad, axis=0) & ~np.any(self.good, axis=0))

    @property
    def anew(self) -> list[Flags]:
        """For each node the frames whose damaged copy can be replaced by another node's."""
        somewhere = np.any(self.good, axis=0)
        return [bad & somewhere for bad in self.bad]


def unreadable(dataset: Dataset, numbers: Numbers) -> Numbers:
    """Return which of the frames that a store has natively are damaged; every byte of them is checked."""
    reading = dataset.read(numbers, ReadOptions(unpack=False))
    wrong = [
        number
        for number, frame in zip(numbers.tolist(), reading, strict=True)
        if frame is None and reading.reason in DAMAGED
    ]
    return np.array(wrong, dtype=np.int64)


def look(
    leaders: Communicator, dataset: Dataset, held: list[Flags], span: range, heal: Callable[[Numbers], Numbers]
) -> tuple[Held, int]:
    """Check what each node holds (collective, of the first ranks); `heal` writes lost frames anew and returns which.

    Returns also how many this node has written.
    """
    mine = held[leaders.rank]
    bad = np.zeros(len(span), dtype=bool)
    wrong = on_every_rank(leaders, lambda: unreadable(dataset, np.flatnonzero(mine) + span.start))
    bad[wrong - span.start] = True
    found = Held(held, _shared(leaders, bad))
    found = replace(found, good=[there & ~wrong for there, wrong in zip(held, found.bad, strict=True)])
    if not found.lost.any():
        return found, 0
    healed = np.zeros(len(span), dtype=bool)
    lost = np.flatnonzero(bad & found.lost) + span.start
    healed[on_every_rank(leaders, lambda: heal(lost)) - span.start] = True
    well = _shared(leaders, healed)
    found = Held(
        [good | one for good, one in zip(found.good, well, strict=True)],
        [wrong & ~one for wrong, one in zip(found.bad, well, strict=True)],
    )
    return found, int(healed.sum())


def _shared(leaders: Communicator, mine: Flags) -> list[Flags]:
    """Return the flags of all nodes."""
    told = leaders.allgather(np.packbits(mine).tobytes())
    return [np.unpackbits(np.frombuffer(one, np.uint8), count=len(mine)).astype(bool) for one in told]


def from_origin(dataset: Dataset, stamp: OriginStamp, numbers: Numbers) -> Numbers:
    """Write frames anew as the origin has them, if it can be reached and is as it was; return which were written."""
    written = [np.empty(0, np.int64)]
    for begin in range(0, len(numbers), READ_AT_ONCE):
        some = numbers[begin : begin + READ_AT_ONCE]
        frames = _reread(stamp, some)
        if not frames:
            break
        for one in frames:
            dataset.write(one.number, one.time, one.box, one.positions, one.velocities, one.forces, native=True)
        dataset.flush()
        written.append(some)
    return np.concatenate(written)


def _reread(stamp: OriginStamp, numbers: Numbers) -> list[RawFrame]:
    """Read frames of the origin; none if it cannot be reached, or is not what the stamp tells."""
    if stamp.is_pushed:
        return []
    try:
        origin = at_rest(stamp.paths, lambda: _opened(stamp))
        frames = [own(frame) for frame in origin.read(numbers.tolist())]
        return frames if _is_same(origin, stamp) else []
    except (HimachError, OSError):
        return []


def own(frame: RawFrame) -> RawFrame:
    """Return a frame whose arrays outlive the next one."""

    def copied(field: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32] | None:
        return None if field is None else field.copy()

    return replace(
        frame,
        positions=frame.positions.copy(),
        velocities=copied(frame.velocities),
        forces=copied(frame.forces),
        box=copied(frame.box),
    )


def _opened(stamp: OriginStamp) -> Origin:
    topology = next((Path(path) for path in reversed(list(stamp.topologies)) if Path(path).exists()), None)
    return open_origin(stamp.paths, topology, json.loads(stamp.keywords))


def _is_same(origin: Origin, stamp: OriginStamp) -> bool:
    """Tell whether the frames of the stamp are those of the origin as it is now."""
    return stamp.compare(OriginStamp.of(origin, json.loads(stamp.keywords), [stamp])) != "changed"
