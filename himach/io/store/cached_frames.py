"""`CachedFrames`: frames cached in a store or behind a server; `Reading` iterates over them."""

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

MARKED_WORDS = 1 << 14  # of 64 frames, processed at a time
CHUNK = 1 << 16  # numbers of a set that are an array at a time
MAX_SPREAD = 16  # a range is selected as a whole up to this width per number looked up
BESIDE = re.compile(r"(.*) \[(slices|[0-9]+ atoms [0-9a-f]{16})\]", re.DOTALL)


def base_name(name: str) -> str:
    """Return the name of the dataset to which slices or a subset of this name belong; else the name itself."""
    match = BESIDE.fullmatch(name)
    return name if match is None else match[1]


def select_range(frames: BitMap64, low: int, stop: int) -> BitMap64:
    """Return the numbers n of a set with low <= n < stop; the cost depends on their count, not on gaps."""
    if stop - low <= len(frames) << 16:  # a range takes memory for every 65,536 numbers
        return frames & BitMap64(range(low, stop))
    selected = BitMap64(frames)
    selected.remove_range(0, low)
    selected.remove_range(stop, bodhi.MAX_NUMBER + 1)
    return selected


def chunks(frames: BitMap64) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the numbers of a set, ascending, by arrays of at most `CHUNK`."""
    for start in range(0, len(frames), CHUNK):
        yield np.asarray(frames[start : start + CHUNK].to_array(), dtype=np.int64)


def mask_of(frames: BitMap64, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which of the numbers are in a set, bool (n,)."""
    if not len(numbers):
        return np.zeros(0, dtype=bool)
    low, stop = max(0, int(numbers.min())), int(numbers.max()) + 1
    if stop - low <= MAX_SPREAD * len(numbers):
        selected = select_range(frames, low, stop)
    else:  # the whole range may not fit into memory
        selected = frames & BitMap64(numbers[numbers >= 0].astype(np.uint64))
    return np.isin(numbers, np.asarray(selected.to_array(), dtype=np.int64))


class CachedFrames(FrameSource):
    """Cached frames of one generation of one trajectory, from a store itself or from servers."""

    name: str  # of the dataset
    generation: bytes  # fingerprint of the dataset's content
    identity: str  # of the store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def facts(self) -> dict[str, int]:
        """Return counts and sizes: native, alien, ..."""

    def holds(self, numbers: npt.NDArray[np.int64], native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which of the frames are held, or held natively, bool (n,)."""
        low, stop = (int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else (0, 0)
        present = self.frames(True, low, stop)
        return mask_of(present if native else present | self.frames(False, low, stop), numbers)

    def mark(self, frames: range, native: npt.NDArray[np.uint64], alien: npt.NDArray[np.uint64]) -> None:
        """Set the bits of the `frames` that are held natively, and as aliens; keep other bits."""
        bodhi.check_words(frames, native, alien)
        ends = sorted((frames[0], frames[-1])) if frames else [0, -1]
        for is_native, words in ((True, native), (False, alien)):
            present = self.frames(is_native, ends[0], ends[1] + 1)
            for start in range(0, len(words), MARKED_WORDS):
                block = frames[64 * start : 64 * (start + MARKED_WORDS)]
                flags = mask_of(present, np.arange(block.start, block.stop, block.step))
                bits = np.packbits(np.pad(flags, (0, -len(flags) % 64)), bitorder="little").view(np.uint64)
                words[start : start + MARKED_WORDS] |= bits

    @abstractmethod
    def attachment(self, name: str) -> bytes | None:
        """Return the attachment of this name, or None; see `Dataset.attach`."""

    @abstractmethod
    def close(self) -> None:
        """Release resources; readings in progress can continue."""

    @abstractmethod
    def frames(self, native: bool, low: int = 0, stop: int = bodhi.MAX_NUMBER + 1) -> BitMap64:
        """Return the numbers of one kind, at least those n with low <= n < stop."""

    @property
    def native(self) -> BitMap64:
        """Numbers of the frames held natively."""
        return self.frames(True)

    @property
    def alien(self) -> BitMap64:
        """Numbers of the frames held as aliens."""
        return self.frames(False)

    def bounds(self, *, native: bool = False) -> tuple[int, int] | None:
        """Return the first and the last frame held, or held natively; None if there is none."""
        frames = self.native if native else self.native | self.alien
        return (frames.min(), frames.max()) if frames else None

    @abstractmethod
    def read(self, numbers: npt.ArrayLike, options: ReadOptions = WHOLE) -> "Reading":
        """Read frames, in the order of `numbers`, ahead of the caller, None for a miss; see `FrameSource.read`."""


class Reading(Iterator[RawFrame | None]):
    """Iterates over the frames of one `CachedFrames.read`."""

    def __init__(self, reader: bodhi.ReaderHandle | None) -> None:
        self._reader = reader
        self.misses: dict[str, int] = {}
        self.reason = ""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RawFrame | None:
        """Return the next frame, whose arrays are valid until the next call; None for a miss."""
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
        """Count a miss by its reason."""
        self.reason = reason
        self.misses[reason] = self.misses.get(reason, 0) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of records delivered so far."""
        assert self._reader is not None
        return self._reader.nbytes
