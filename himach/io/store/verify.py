"""Verification of a store: `verify()` finds every frame whose bytes were altered, `drop()` drops such frames."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from himach.io.store.bodhi import verify_segment
from himach.io.store.store import Store, StoreError

_SEGMENT = re.compile(r"[na]-([0-9a-f]{16})\.seg")


@dataclass(frozen=True)
class Bad:
    """A defect in the file `segment` ("" for the whole dataset), of a `frame` or None."""

    dataset: str
    directory: str
    segment: str
    frame: int | None
    native: bool
    reason: str

    def __str__(self) -> str:
        frame = "" if self.frame is None else f" frame {self.frame},"
        segment = f" segment {self.segment}" if self.segment else f" {self.directory}"
        return f"{self.dataset}:{frame}{segment}: {self.reason}"


@dataclass
class Verified:
    """Number and bytes of valid frame records, each copy counted, and the defects."""

    frames: int
    nbytes: int
    bad: list[Bad]


def verify(store: Store) -> Verified:
    """Read all frames of all datasets and check them."""
    verified = Verified(0, 0, [])
    for directory in store.directories():
        with suppress(FileNotFoundError):  # another process removed it
            segments = sorted(filter(_SEGMENT.fullmatch, os.listdir(store.path / directory)))
            if segments:  # else there is nothing to read; perhaps it is still being created
                _verify_dataset(store, directory, segments, verified)
    return verified


def _verify_dataset(store: Store, directory: str, segments: list[str], verified: Verified) -> None:
    try:
        dataset = store.open_directory(directory).name
    except StoreError as error:
        verified.bad.append(Bad(directory, directory, "", None, False, str(error)))
        dataset = directory
    hashes = [int(part, 16) for part in directory.split("-")]
    defects: list[tuple[str, int, int | None, str]] = []
    dropped: set[tuple[int, int]] = set()
    handle = os.open(store.path / directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for segment in segments:
            try:
                frames, nbytes, bad, drops = verify_segment(handle, segment, *hashes)
            except FileNotFoundError:  # it was evicted
                continue
            except OSError as error:
                frames, nbytes, bad, drops = 0, 0, [(0, None, f"it cannot be read: {error.strerror}")], []
            verified.frames += frames
            verified.nbytes += nbytes
            defects += [(segment, *defect) for defect in bad]
            dropped.update(drops)
    finally:
        os.close(handle)
    for segment, offset, frame, reason in defects:
        if (int(segment[2:18], 16), offset) not in dropped:  # damage in a dropped record loses nothing
            verified.bad.append(Bad(dataset, directory, segment, frame, segment.startswith("n"), reason))


def drop(store: Store, bad: Iterable[Bad]) -> int:
    """Drop bad frames, each as native or alien as it was found; return how many existed."""
    numbers: dict[tuple[str, bool], set[int]] = {}
    for item in bad:
        if item.frame is not None:
            numbers.setdefault((item.directory, item.native), set()).add(item.frame)
    return sum(
        store.open_directory(directory).drop(np.array(sorted(frames), dtype=np.int64), native=native)
        for (directory, native), frames in numbers.items()
    )
