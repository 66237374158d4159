"""Verification of a store: `verify()` finds every frame whose bytes were altered, `drop()` drops such frames."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from himach.io.store.segment_file import Damage, Key, Tombstone, check_segment
from himach.io.store.store import Store, StoreError

_SEGMENT = re.compile(r"([na])-([0-9a-f]{16})\.seg")


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


def verify(store: Store, progress: Callable[[int], object] = lambda nbytes: None) -> Verified:
    """Read all records of all datasets and check them."""
    verified = Verified(0, 0, [])
    for directory in store.directories():
        segments = _list_segments(store.path / directory)
        if not segments:
            continue  # nothing to read; perhaps still being created
        try:
            name = store.open_directory(directory).name
        except StoreError as error:
            verified.bad.append(Bad(directory, directory, "", None, False, str(error)))
            name = directory
        damages: list[tuple[Path, Damage]] = []
        dropped: set[Tombstone] = set()
        for path in segments:
            for item in _check(path, directory):
                if isinstance(item, Damage):
                    damages.append((path, item))
                elif isinstance(item, Tombstone):
                    dropped.add(item)
                else:
                    verified.frames += 1
                    verified.nbytes += item
                    progress(item)
        for path, item in damages:
            # Damage in a dropped record loses nothing.
            if Tombstone(_segment_id(path), item.offset) not in dropped:
                verified.bad.append(Bad(name, directory, path.name, item.frame, path.name.startswith("n"), item.reason))
    return verified


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


def _list_segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _SEGMENT.fullmatch(path.name))


def _segment_id(path: Path) -> int:
    return int(path.name[2:18], 16)


def _check(path: Path, directory: str) -> Iterator[Damage | Tombstone | int]:
    """Check a segment; yield nothing more if it was evicted."""
    dataset, generation = (int(part, 16) for part in directory.split("-"))
    try:
        yield from check_segment(path, Key(dataset, generation, _segment_id(path)))
    except FileNotFoundError:
        return
    except OSError as error:
        yield Damage(0, None, f"it cannot be read: {error.strerror}")
