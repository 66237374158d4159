"""Frames that a node has cached, in a store or behind its server: `CachedFrames`, read one by one by `Reading`."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.frame import RawFrame
from himach.io.frame_source import WHOLE, FrameSource, ReadOptions
from himach.io.store import bodhi

BESIDE = re.compile(r"(.*) \[(slices|[0-9]+ atoms [0-9a-f]{16})\]", re.DOTALL)


def base_name(name: str) -> str:
    """Return the name of the dataset that one of this name lies beside, as slices do; else the name itself."""
    match = BESIDE.fullmatch(name)
    return name if match is None else match[1]


def select_range(frames: BitMap64, low: int, stop: int) -> BitMap64:
    """Return those numbers of a set from `low` on and below `stop`; it costs by them, however far apart they are."""
    if stop - low <= len(frames) << 16:  # a set of neighbours takes memory for every 65,536 of them
        return frames & BitMap64(range(low, stop))
    selected = BitMap64(frames)
    selected.remove_range(0, low)
    selected.remove_range(stop, bodhi.MAX_NUMBER + 1)
    return selected


class CachedFrames(FrameSource):
    """The frames of one generation of one trajectory that are cached, asked of a store itself or of servers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the dataset."""

    @property
    @abstractmethod
    def generation(self) -> bytes:
        """Fingerprint of its content."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What tells the store from every other."""

    @abstractmethod
    def facts(self) -> dict[str, int]:
        """Return counts and sizes: native, alien, ..."""

    @abstractmethod
    def holds(self, numbers: npt.NDArray[np.int64], native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which of the frames are held, or held natively, bool (n,)."""

    @abstractmethod
    def mark(self, frames: range, native: npt.NDArray[np.uint64], alien: npt.NDArray[np.uint64]) -> None:
        """Set the bits of those `frames` that are held natively, and as aliens; other bits stay."""

    @abstractmethod
    def attachment(self, name: str) -> bytes | None:
        """Return the small file that is kept under this name beside the frames, or None (see `Dataset.attach`)."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open; frames that are being read can be read on."""

    @property
    @abstractmethod
    def native(self) -> BitMap64:
        """Numbers of the frames held natively."""

    @property
    @abstractmethod
    def alien(self) -> BitMap64:
        """Numbers of the frames held as aliens."""

    @abstractmethod
    def bounds(self, *, native: bool = False) -> tuple[int, int] | None:
        """Return the first and the last frame held, or held natively; None if there is none."""

    @abstractmethod
    def read(self, numbers: npt.ArrayLike, options: ReadOptions = WHOLE) -> Reading:
        """Read frames, in the order of `numbers`, ahead of the caller, None for a miss; see `FrameSource.read`."""


class LibraryFrames(CachedFrames):
    """Cached frames that the C library gives: a handle of it has what is abstract here."""

    @abstractmethod
    def numbers(self, kind: int, start: int, capacity: int) -> npt.NDArray[np.uint64]:
        """Return up to `capacity` frame numbers of one kind, ascending, from `start` on."""

    @abstractmethod
    def open_reader(self, numbers: npt.ArrayLike, wanted: ReadOptions) -> bodhi.ReaderHandle:
        """Open a reader of frames in C."""

    @property
    def native(self) -> BitMap64:
        """Numbers of the frames held natively."""
        return self._bitmap(bodhi.NATIVE)

    @property
    def alien(self) -> BitMap64:
        """Numbers of the frames held as aliens."""
        return self._bitmap(bodhi.ALIEN)

    def _bitmap(self, kind: int) -> BitMap64:
        frames = BitMap64()
        start = 0
        while True:
            numbers = self.numbers(kind, start, bodhi.NUMBERS_AT_ONCE)
            frames |= BitMap64(numbers)
            if numbers.size < bodhi.NUMBERS_AT_ONCE:
                return frames
            start = int(numbers[-1]) + 1

    def bounds(self, *, native: bool = False) -> tuple[int, int] | None:
        """Return them; the C library is asked for few numbers."""
        kinds = [bodhi.NATIVE] if native else [bodhi.NATIVE, bodhi.ALIEN]
        bounds = [bound for kind in kinds if (bound := self._kind_bounds(kind)) is not None]
        return (min(first for first, _ in bounds), max(last for _, last in bounds)) if bounds else None

    def _kind_bounds(self, kind: int) -> tuple[int, int] | None:
        """Return the ends of the frames of one kind; the last one is sought by halves."""
        numbers = self.numbers(kind, 0, 1)
        if not numbers.size:
            return None
        first = last = int(numbers[0])
        above = bodhi.MAX_NUMBER + 1
        while above - last > 1:
            middle = last + (above - last) // 2
            numbers = self.numbers(kind, middle, 1)
            if numbers.size:
                last = int(numbers[-1])
            else:
                above = middle
        return first, last

    def read(self, numbers: npt.ArrayLike, options: ReadOptions = WHOLE) -> Reading:
        """Read frames, in the order of `numbers`, ahead of the caller and without the GIL; see `CachedFrames.read`."""
        return Reading(self.open_reader(numbers, options))


class Reading(Iterator[RawFrame | None]):
    """The frames of one `CachedFrames.read`, one by one."""

    def __init__(self, reader: bodhi.ReaderHandle | None) -> None:
        self._reader = reader
        self.misses: dict[str, int] = {}
        self.reason = ""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RawFrame | None:
        """Return the next frame, whose arrays hold until the next call; None for a miss."""
        assert self._reader is not None
        record = self._reader.next()
        if record is None:
            raise StopIteration
        number, reason, _, time, box, positions, velocities, forces = record
        if reason:
            self._miss(bodhi.REASONS[reason])
            return None
        return RawFrame(number, time, positions, box, velocities, forces)

    def _miss(self, reason: str) -> None:
        """Count a miss."""
        self.reason = reason
        self.misses[reason] = self.misses.get(reason, 0) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of records delivered so far."""
        assert self._reader is not None
        return self._reader.nbytes
