"""Frames of a selection that a node holds, as the words that the protocol exchanges: bit p is frame ``frames[p]``.

`Cached` is the interface of a store, `InMemory` a store with given frames, `NOTHING` an empty one. `Remaining` is the
rest of a selection: the frames at some of its steps, numbered consecutively for the protocol. `Share` is a node's share
of the frames: a set of positions in the node's shared memory, from which its ranks take tasks.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.ranks.communicator import Words
from himach.selection import FrameList, Selected, is_sparse, span
from himach.selection import numbers_at as numbers_of_selected
from himach.zazen.claims import Bits, n_words, popcount

Positions = npt.NDArray[np.int64]
#: Bits of a bitmap moved at a time, a multiple of the bits of a word.
CHUNK_BITS = 1 << 24
WORD = 64


@dataclass(frozen=True)
class Remaining:
    """Frames at some steps of a selection."""

    frames: Selected  # the selection
    starts: Positions
    stops: Positions

    @classmethod
    def from_mask(cls, frames: Selected, mask: npt.NDArray[np.bool_]) -> "Remaining":
        """Return the frames at the steps where `mask`, bool (steps,), is true."""
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).astype(np.int64)
        return cls(frames, edges[0::2], edges[1::2])

    def __len__(self) -> int:
        return int(self._counts[-1])

    def __getitem__(self, index: int) -> int:
        """Return the number of a frame."""
        return self.frames[int(self.steps(np.array([index % len(self)]))[0])]

    @cached_property
    def _counts(self) -> Positions:
        """Number of remaining frames before each start, and of all, int64 (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.stops - self.starts)])

    def steps(self, positions: Positions) -> Positions:
        """Return the steps in the selection, int64 (n,), of the frames at some positions."""
        run = np.searchsorted(self._counts, positions, side="right") - 1
        steps: Positions = self.starts[run] + (positions - self._counts[run])
        return steps

    def numbers(self, positions: Positions) -> Positions:
        """Return the numbers, int64 (n,), of the frames at some positions."""
        return numbers_of_selected(self.frames, self.steps(positions))

    def choose(self, words: "Words", out: "Words") -> None:
        """Copy the bits of the remaining frames from `words`, a bit per step, to `out`, a bit per remaining frame."""
        n = len(self)
        for first in range(0, n, CHUNK_BITS):
            last = min(first + CHUNK_BITS, n)
            steps = self.steps(np.arange(first, last, dtype=np.int64))
            low = int(steps[0]) // WORD
            high = int(steps[-1]) // WORD + 1
            bits = np.unpackbits(words[low:high].view(np.uint8), bitorder="little")
            chosen = np.zeros(-(-(last - first) // WORD) * WORD, dtype=np.uint8)
            chosen[: last - first] = bits[steps - low * WORD]
            place = first // WORD
            packed = np.packbits(chosen, bitorder="little").view(np.uint64)
            out[place : place + len(packed)] |= packed


#: Frame numbers that a run requests, by position: a selection, or the rest of one.
Selection = range | FrameList | Remaining


def numbers_at(frames: Selection, positions: Positions) -> Positions:
    """Return the numbers, int64 (n,), of the frames at some positions."""
    return frames.numbers(positions) if isinstance(frames, Remaining) else numbers_of_selected(frames, positions)


Numbers = npt.NDArray[np.int64]


class Cached(Protocol):
    """Interface for the frames of a dataset that a node's store holds."""

    @property
    def identity(self) -> str | None:
        """Identifier of the store; equal on nodes that see the same directory. None: not shared."""

    def mark(self, frames: range, native: "Words", alien: "Words") -> None:
        """Set the bits of `frames` that a writer pushed to this node, and of those stored after a read miss.

        Both are uint64 (n_words(len(frames)),): bit ``p % 64`` of word ``p // 64`` is ``frames[p]``. Other bits are not
        changed, so several stores can mark frames one after another.
        """

    def holds(self, numbers: Numbers, native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or were pushed to this node, bool (n,)."""


class InMemory:
    """A cache of given frame numbers; for `identity` see `Cached`."""

    def __init__(self, native: Iterable[int] = (), alien: Iterable[int] = (), identity: str | None = None) -> None:
        self.native, self.alien = (np.fromiter(numbers, dtype=np.int64) for numbers in (native, alien))
        self.identity = identity

    def mark(self, frames: range, native: "Words", alien: "Words") -> None:
        """Set the bits of native and alien frames."""
        for numbers, words in ((self.native, native), (self.alien, alien)):
            positions, rest = np.divmod(numbers - frames.start, frames.step)
            positions = positions[(rest == 0) & (positions >= 0) & (positions < len(frames))].astype(np.uint64)
            np.bitwise_or.at(words, positions // 64, np.uint64(1) << positions % 64)

    def holds(self, numbers: Numbers, native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or held natively."""
        return np.isin(numbers, self.native if native else np.concatenate([self.native, self.alien]))


NOTHING = InMemory()


def frame_bitmaps(cached: Cached, frames: Selection, native: "Words | None" = None) -> "tuple[Words, Words]":
    """Return the bitmaps of the native and of the alien `frames` (see `Cached.mark`).

    The first is written to `native` if given; its content is overwritten.
    """
    if native is None:
        native = np.empty(n_words(len(frames)), dtype=np.uint64)
    alien = np.zeros_like(native)
    native[...] = 0
    if isinstance(frames, FrameList):
        among = span(frames)
        if is_sparse(len(among), len(frames)):
            natives = cached.holds(frames.numbers, native=True)
            native[...] = _pack_bits(natives)
            alien[...] = _pack_bits(cached.holds(frames.numbers) & ~natives)
            return native, alien
        chosen = np.zeros(len(among), dtype=np.bool_)
        chosen[frames.numbers - among.start] = True
        return frame_bitmaps(cached, Remaining.from_mask(among, chosen), native)
    if isinstance(frames, Remaining):
        for words, out in zip(frame_bitmaps(cached, frames.frames), (native, alien), strict=True):
            frames.choose(words, out)
    else:
        cached.mark(frames, native, alien)
    return native, alien


def _pack_bits(bits: npt.NDArray[np.bool_]) -> "Words":
    words: Words = np.packbits(np.pad(bits, (0, -len(bits) % 64)), bitorder="little").view(np.uint64)
    return words


def count_chunks(native: "Words", alien: "Words", chunk_words: int) -> Numbers:
    """Return the number of set bits in each chunk of `chunk_words` words of two bitmaps, int64 (2, n)."""
    starts = range(0, len(native), chunk_words)
    return np.array([[popcount(words[at : at + chunk_words]) for at in starts] for words in (native, alien)], np.int64)


MAX_TASK_FRAMES = 512
#: A task is 1 / PART_OF_RANK of what remains for each rank, if all are equally fast.
PART_OF_RANK = 4
#: The last tasks are 1 / SMALLEST of the first.
SMALLEST = 32


class Tasks:
    """A share of `count` frames, cut into tasks that shrink towards the end so that all ranks finish together."""

    def __init__(self, count: int, ranks: int) -> None:
        self.count = count
        parts = PART_OF_RANK * ranks
        self.task_frames = max(1, min(MAX_TASK_FRAMES, count // parts))
        smallest = max(1, self.task_frames // SMALLEST)
        self._n_equal = max(0, count - self.task_frames * parts) // self.task_frames
        starts, start = [], self._n_equal * self.task_frames
        while start < count:
            starts.append(start)
            start += min(self.task_frames, max(smallest, (count - start) // parts))
        self._starts = [*starts, count]

    def __len__(self) -> int:
        return self._n_equal + len(self._starts) - 1

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first frame of task `number` within the share, and the one after its last."""
        return self._start(number), self._start(number + 1)

    def _start(self, number: int) -> int:
        return number * self.task_frames if number < self._n_equal else self._starts[number - self._n_equal]


@dataclass
class Division:
    """Result that a leader sends to the ranks of its node."""

    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class Share:
    """The frames that this node reads; its ranks take them in tasks."""

    frames: Selection
    positions: Bits
    counter: Iterator[int]  # of tasks, shared by the node's ranks
    ranks: int
    division: Division
    shed: Callable[[], Iterable[Positions]]  # positions of alien copies that the node need not keep

    def __post_init__(self) -> None:
        self.counts, self.rounds, self.seconds = self.division.counts, self.division.rounds, self.division.seconds
        self.size = self.positions.count
        self._tasks = Tasks(self.size, self.ranks)

    def take(self) -> Positions | None:
        """Return the steps of the next task, or None when the node's share is exhausted.

        Steps are positions in the selection, int64 (n,), ascending. Each step goes to one rank only.
        """
        number = next(self.counter)
        if number >= len(self._tasks):
            return None
        positions = self.positions.part(*self._tasks.bounds(number))
        return self.frames.steps(positions) if isinstance(self.frames, Remaining) else positions

    def surplus(self) -> Iterator[Positions]:
        """Yield batches of alien frame numbers, int64, for this node's store to drop after the run (first rank).

        Another copy of each is kept: a native one, or the alien one of the holder that reads the frame in this run.
        """
        for positions in self.shed():
            yield numbers_at(self.frames, positions)
