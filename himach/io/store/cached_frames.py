"""Frames that a node has cached, however they are reached: `CachedFrames`, and `Reading`, which gives them one by one.

A dataset of a store is one kind of `CachedFrames`, a client of a store's server another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.frame import RawFrame
from himach.io.store import bodhi

__all__ = ["CachedFrames", "Reading"]

Vectors = npt.NDArray[np.float32]
NUMBERS_AT_ONCE = 1 << 16
LARGEST = (1 << 63) - 1  # frame number, and none has it


class CachedFrames:
    """The frames of one generation of one trajectory that a store holds, asked of the store itself or of its server.

    Parameters
    ----------
    handle
        The boundary to the C library.
    """

    def __init__(self, handle: bodhi.DatasetHandle | bodhi.LinkHandle) -> None:
        self._asking = handle
        self._asked: tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64]] = (None, np.empty((0, 2), np.int64))

    @property
    def native(self) -> BitMap64:
        """Numbers of the frames held natively."""
        return self._bitmap(bodhi.NATIVE)

    @property
    def alien(self) -> BitMap64:
        """Numbers of the frames held as aliens."""
        return self._bitmap(bodhi.ALIEN)

    def _bitmap(self, kind: int) -> BitMap64:
        held = BitMap64()
        start = 0
        while True:
            numbers = self._asking.numbers(kind, start, bodhi.NUMBERS_AT_ONCE)
            held |= BitMap64(numbers)
            if numbers.size < bodhi.NUMBERS_AT_ONCE:
                return held
            start = int(numbers[-1]) + 1

    def ends(self, *, native: bool = False) -> tuple[int, int] | None:
        """Return the first and the last frame held, or held natively; None if there is none."""
        kinds = [bodhi.NATIVE] if native else [bodhi.NATIVE, bodhi.ALIEN]
        ends = [end for kind in kinds if (end := self._ends(kind)) is not None]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None

    def _ends(self, kind: int) -> tuple[int, int] | None:
        """Return the ends of the frames of one kind; the last one is sought by halves."""
        some = self._asking.numbers(kind, 0, 1)
        if not some.size:
            return None
        first = last = int(some[0])
        above = LARGEST
        while above - last > 1:
            middle = last + (above - last) // 2
            some = self._asking.numbers(kind, middle, 1)
            if some.size:
                last = int(some[-1])
            else:
                above = middle
        return first, last

    def mark(self, frames: range, native: npt.NDArray[np.uint64], alien: npt.NDArray[np.uint64]) -> None:
        """Set the bits of those `frames` that are held natively, and as aliens; other bits stay.

        Parameters
        ----------
        frames
            Frame numbers, not negative; `step` may be.
        native, alien
            uint64 (n,), 64 frames a word: bit ``i % 64`` of word ``i // 64`` is ``frames[i]``.

        Raises
        ------
        ValueError
            A frame number is negative, or the words are too few or too many.
        """
        self._asking.mark(frames, native, alien)

    def read(
        self,
        numbers: npt.ArrayLike,
        atoms: npt.NDArray[np.int64] | None = None,
        fields: int = 0,
        *,
        verify: bool = True,
        direct: Literal["auto", "on", "off"] = "auto",
        request_bytes: int = 0,
        ring: int = 0,
        ahead: bool = True,
        sparse: bool = False,
        unpack: bool = True,
    ) -> Reading:
        """Read frames, in the order of `numbers`, ahead of the caller and without the GIL.

        Parameters
        ----------
        numbers
            Frame numbers.
        atoms
            The atoms that are needed: int64 (n,), ascending; or runs of them, first and last + 1, int64 (n, 2),
            ascending and apart; None for all. Only the blocks that hold them are read and checked. Arrays keep their
            shape (n_atoms, 3) and atoms their rows; rows of other atoms hold anything.
        fields
            What to read beside the stamps: ``bodhi.POSITIONS``, ``VELOCITIES``, ``FORCES`` or-ed; 0 for all there is.
        verify
            Check the payload's checksums. Headers are always checked.
        direct
            Whether cold data bypasses the page cache; "auto" where the dataset is larger than half of the memory.
        request_bytes
            Size of a read request; 0 for 512 KiB, or 2 MiB where the page cache is bypassed.
        ring
            Number of requests read ahead; 0 for 6, or 3 where the page cache is bypassed.
        ahead
            Read ahead in a thread, which few small frames are not worth.
        sparse
            Read nothing between the parts that are asked for, nor have the system do so.
        unpack
            Give the frames' arrays. Else frames are read and checked as they lie, and their arrays are None.

        Returns
        -------
        Reading
            Iterates over one `RawFrame` per number, or None where it is a miss. Its arrays are None for what is not
            there or not asked for (positions, too).

        Raises
        ------
        ValueError
            `atoms` is not ascending, has negative numbers, or is no int64 array.
        """
        wanted = np.ascontiguousarray(numbers, dtype=np.int64)
        how = {"auto": bodhi.DIRECT_AUTO, "on": bodhi.DIRECT_ON, "off": bodhi.DIRECT_OFF}[direct]
        ranges = None if atoms is None else self._ranges(atoms)
        reader = self._asking.open_reader(
            wanted, fields, verify, how, ahead, request_bytes, ring, ranges, sparse, unpack
        )
        return Reading(reader)

    def _ranges(self, atoms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the runs of neighbouring atoms, which the tasks of a run ask for again and again."""
        if atoms.ndim == 2:
            return atoms
        if atoms is not self._asked[0] or atoms.flags.writeable:
            self._asked = (atoms, bodhi.atom_ranges(atoms))
        return self._asked[1]


class Reading(Iterator[RawFrame | None]):
    """The frames of one `Dataset.read`, one by one.

    Attributes
    ----------
    misses
        Number of misses so far, by reason.
    reason
        That of the last miss; empty before the first.
    """

    def __init__(self, reader: bodhi.ReaderHandle) -> None:
        self._reader = reader
        self.misses: dict[str, int] = {}
        self.reason = ""

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> RawFrame | None:
        """Return the next frame, whose arrays hold until the next call; None for a miss."""
        found = self._reader.next()
        if found is None:
            raise StopIteration
        number, reason, _, time, box, positions, velocities, forces = found
        if reason:
            self.reason = bodhi.REASONS[reason]
            self.misses[self.reason] = self.misses.get(self.reason, 0) + 1
            return None
        return RawFrame(number, time, positions, box, velocities, forces)

    @property
    def nbytes(self) -> int:
        """Bytes of records delivered so far."""
        return self._reader.nbytes
