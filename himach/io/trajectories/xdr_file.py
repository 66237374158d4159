"""XTC and TRR files: `XdrFile`, frames from our index and our decoder.

Reading a frame takes one read of its bytes and decodes them into buffers that frames share. Values equal MDAnalysis's
to the last bit, by the same roundings in the same order.

`FrameFile` is the base of all kinds of trajectory files, read by frame number; `AbsentFile` is one out of reach.
"""

import contextlib
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError, UsageError
from himach.frame import Coded, RawFrame, Vectors
from himach.io.frame_source import Numbers
from himach.io.trajectories import xtc
from himach.io.trajectories.readahead import ask_for
from himach.io.trajectories.timeline import FrameTimes, Times, even_times
from himach.io.trajectories.urls.byte_file import ByteFile, exists
from himach.io.trajectories.urls.url_names import is_url
from himach.io.trajectories.xdr_header import (
    DAMAGED,
    FORCES,
    HEADER_BYTES,
    POSITIONS,
    VELOCITIES,
    TrrHeader,
    XtcHeader,
    parse_trr,
    parse_xtc,
)
from himach.io.trajectories.xdr_index import XdrIndex


class FrameFile(ABC):
    """Frames of one file (or directory), by their number within it."""

    present = True
    kind = ""
    n_frames = n_atoms = 0  # of the first frames of the file, those that are in the dataset
    times: FrameTimes | None = None  # of its frames, ps; None if they are not known without reading frames
    timed = True
    topology: str | None = None  # topology file that comes with the frames
    keywords: Mapping[str, Any] = {}  # keywords of MDAnalysis for this topology
    _bytes_per_frame = 0.0

    def __init__(self, path: str) -> None:
        self.path = path
        self.stamps: tuple[str, ...] = (path,)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of another process, which opens the file by itself."""
        sent = object.__new__(type(self))
        sent.__dict__.update(self.__dict__)
        sent._forget()
        return sent.__dict__

    def _forget(self) -> None:
        """Set what belongs to this process alone, as before the first read."""
        self._file: ByteFile | None = None  # while it is open

    @abstractmethod
    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return frame `index` of the file; raises whatever the format's decoder does."""

    def time(self, index: int) -> float:
        """Return the time of a frame, ps; reads the frame if the times are not known."""
        return float(self.times[index]) if self.times is not None else self.read(index).time

    def expect(self, indices: Sequence[int]) -> None:  # noqa: B027 (not all need it)
        """Request readahead of the bytes of these frames."""

    def nbytes(self, indices: npt.NDArray[np.int64]) -> int:
        """Return the bytes that reading these frames takes, by the mean without an index."""
        return round(len(indices) * self._bytes_per_frame)

    def content(self, limit: int) -> list[str]:
        """Return the files that hold the trajectory's content, a spread sample if they are more than `limit`."""
        return list(self.stamps)

    def frame_files(self, indices: npt.NDArray[np.int64]) -> set[str]:
        """Return the files of these frames."""
        return {self.path}

    def release(self) -> None:
        """Close the file until the next read."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the file server may be away
                file.close()

    def _set_times(self, times: Times | None, dt: float | None, offset: float) -> None:
        """Set the times of frames: even ones by the keyword dt, else those of the file; shifted by time_offset."""
        self.timed = dt is None
        if dt is not None:
            self.times = even_times(self.n_frames, float(dt), 0.0, float(offset))
        elif times is not None:
            self.times = times + float(offset)

    def _fill(self, view: memoryview, place: int) -> int:
        """Read bytes of the file from `place` on; return how many there are before its end."""
        if self._file is None:
            self._file = ByteFile(self.path)
        self._file.need(place, place + len(view))
        n_read = 0
        while n_read < len(view) and (n_bytes := os.preadv(self._file.descriptor, [view[n_read:]], place + n_read)):
            n_read += n_bytes
        return n_read


def out_of_reach(path: str) -> str:
    """Return the reason why a file is not read, and what to do."""
    if (os.path.isabs(path) or is_url(path)) and exists(path):
        return f"{path} is not read for a dataset that goes by its name; name the file as the trajectory"
    return f"{path} cannot be reached; make it readable again"


class AbsentFile(FrameFile):
    """A file out of reach; `first` is the dataset's number of its first frame.

    It returns only the given `frames`, by their numbers in the dataset.
    """

    present = False

    def __init__(
        self,
        path: str,
        kind: str,
        n_frames: int,
        n_atoms: int,
        times: FrameTimes | None,
        keywords: Mapping[str, Any],
        first: int,
        frames: Mapping[int, RawFrame],
    ) -> None:
        super().__init__(path)
        self.stamps = ()
        self.kind, self.n_frames, self.n_atoms = kind, n_frames, n_atoms
        self.times, self.keywords = times, keywords
        self._first, self._frames = first, frames

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a given frame."""
        number = self._first + index
        if number not in self._frames:
            raise TrajectoryError(
                f"frame {number} cannot be had: no cache gives it, and {out_of_reach(self.path)}, or select frames "
                "that are cached"
            )
        return self._frames[number]


def make_box(edges: npt.NDArray[Any], factor: float) -> npt.NDArray[np.float32] | None:
    """Return lengths and angles of a box from its vectors or lengths, in `factor` Å; None for a box of size zero."""
    from MDAnalysis.lib.mdamath import triclinic_box

    box = np.array([*edges, 90, 90, 90] if edges.shape == (3,) else triclinic_box(*edges), dtype=np.float32)
    if not box[:3].any():
        return None
    box[:3] *= np.float32(factor)
    return box


Data = dict[str, Any]
SPARE_BYTES = 256  # margin, plus a sixteenth, over the bytes that earlier frames needed


class XdrFile(FrameFile):
    """An XTC or TRR file with its index; keywords are MDAnalysis's dt and time_offset (ps), and convert_units."""

    def __init__(self, path: str, index: XdrIndex, keywords: Mapping[str, Any]) -> None:
        if "sub" in keywords:
            raise UsageError("the keyword 'sub' is not supported; select the atoms in the analysis")
        super().__init__(path)
        self.kind = index.kind
        self.n_frames = index.n_frames
        self.n_atoms = index.n_atoms
        self.index = index
        self._set_times(index.times, keywords.get("dt"), keywords.get("time_offset", 0.0))
        self._factors = (10.0, 10.0, 0.1) if keywords.get("convert_units", True) else (1.0, 1.0, 1.0)

    def _forget(self) -> None:
        super()._forget()
        self._coded = Coded(np.empty(0, np.uint8))  # its memory is the read buffer
        self._vectors: list[Vectors] = []
        self._place = (0, 0)  # of the last frame read
        self._loaded = 0  # bytes of it that were read
        self._needed: int | None = None  # atoms needed of earlier frames
        self._reach = 0  # largest number of bytes that these took

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Read a frame, of an XTC file only the first `needed` atoms; its arrays are valid until the next read.

        Earlier frames give the bytes these atoms take; the rest is not read if that at least halves the bytes.
        """
        fields = self.index.fields(index)
        if fields & DAMAGED:
            raise ValueError("its coordinates are damaged: they have senseless sizes")
        if not fields & POSITIONS:
            raise ValueError("it has no positions; select the frames that have them by start and step")
        n_bytes = self._load(index, needed if self.kind == "XTC" else None)
        if not self._vectors:
            self._vectors = [np.empty((self.n_atoms, 3), np.float32) for _ in range(1 if self.kind == "XTC" else 3)]
        data, box, positions, *others = (
            self._decode_xtc(index, n_bytes, needed) if self.kind == "XTC" else self._decode_trr(index, n_bytes)
        )
        assert self.times is not None
        cell = make_box(box.reshape(3, 3), self._factors[0])
        frame = RawFrame(index, float(self.times[index]), positions, cell, *others, data=data)
        if self._coded.ends:
            frame.coded, frame.precision = self._coded if needed is not None else None, self._coded.precision
        return frame

    def frame_bytes(self, index: int) -> memoryview:
        """Return a frame's bytes in the file, valid until the next read."""
        n_bytes = self._load(index, None)
        return memoryview(self._coded.memory)[:n_bytes]

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of the bytes that these frames need."""
        places = map(self.index.place, indices)
        ask_for(self.path, ((start, start + self._to_load(stop - start, self._needed)) for start, stop in places))

    def nbytes(self, indices: Numbers) -> int:
        """Return the size of these frames by the index."""
        return int(self.index.sizes(indices).sum())

    def _load(self, index: int, needed: int | None) -> int:
        """Read a frame's needed bytes into the buffer, and return the size of the frame."""
        start, stop = self._place = self.index.place(index)
        if stop - start + xtc.PAD > len(self._coded.memory):
            self._coded.memory = np.empty((stop - start) * 9 // 8 + xtc.PAD, np.uint8)
        if needed != self._needed:
            self._needed, self._reach = needed, 0
        self._loaded = 0
        self._load_to(self._to_load(stop - start, needed))
        self._coded.left = stop - start - self._loaded
        return stop - start

    def _to_load(self, n_bytes: int, needed: int | None) -> int:
        """Return the bytes to read of a frame: all, unless earlier frames needed at most half as many."""
        estimate = self._reach * 17 // 16 + SPARE_BYTES
        return n_bytes if needed is None or not self._reach or 2 * estimate > n_bytes else estimate

    def _load_to(self, n_bytes: int) -> None:
        if self._file is None:
            self._file = ByteFile(self.path)
            if self._reach:  # readahead requests cover what is needed: keep the system from reading more
                os.posix_fadvise(self._file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        view = memoryview(self._coded.memory)[self._loaded : n_bytes]
        self._loaded += self._fill(view, self._place[0] + self._loaded)
        if self._loaded < n_bytes:
            raise ValueError("the file has become shorter since it was opened")

    def _complete(self) -> None:
        self._load_to(self._place[1] - self._place[0])
        self._coded.left, self._coded.complete = 0, None

    def _check(self, frame: XtcHeader | TrrHeader, index: int, n_bytes: int) -> None:
        """Refuse a frame that differs from its entry in the index."""
        indexed_time = self.index.time(index)
        same_time = frame.time == indexed_time or (math.isnan(frame.time) and math.isnan(indexed_time))
        if (frame.n_atoms, frame.size) != (self.n_atoms, n_bytes) or not same_time:
            raise ValueError(
                f"the file has changed since it was opened: at byte {self.index.place(index)[0]} it has a frame of "
                f"{frame.time:g} ps, {frame.n_atoms} atoms and {frame.size} bytes, and had one of "
                f"{indexed_time:g} ps, {self.n_atoms} atoms and {n_bytes} bytes"
            )

    def _decode_xtc(
        self, index: int, n_bytes: int, needed: int | None
    ) -> tuple[Data, npt.NDArray[np.float32], Vectors]:
        coded, memory = self._coded, self._coded.memory
        frame = parse_xtc(memory[:HEADER_BYTES].tobytes())
        self._check(frame, index, n_bytes)
        positions = self._vectors[0]
        coded.ends = ()
        if frame.ends is None:
            raw = memory[frame.at : frame.at + 12 * self.n_atoms].view(">f4").reshape(-1, 3)
            np.multiply(raw, np.float32(self._factors[0]), out=positions)
        else:
            coded.begin, coded.n_bytes, coded.n_atoms = frame.at, frame.n_bytes, self.n_atoms
            coded.ends, coded.index = frame.ends, frame.sizes
            coded.precision, coded.scale = frame.precision, self._factors[0]
            coded.complete = self._complete if coded.left else None
            self._decode_to(needed, positions)
        box = np.array(struct.unpack(">9f", memory[16:52].tobytes()), dtype=np.float32)
        return {"step": frame.step}, box, positions

    def _decode_to(self, needed: int | None, positions: Vectors) -> None:
        """Decode the needed atoms, and note the bytes they take."""
        coded, n_bytes = self._coded, self._coded.n_bytes
        coded.n_bytes = min(n_bytes, self._loaded - coded.begin)
        try:
            used = xtc.decode(coded, positions, needed)
        except ValueError:
            if coded.complete is None:
                raise
            self._complete()  # these atoms take more bytes than in earlier frames
            coded.n_bytes = n_bytes
            used = xtc.decode(coded, positions, needed)
        coded.n_bytes = n_bytes
        self._reach = max(self._reach, coded.begin + used)

    def _decode_trr(
        self, index: int, n_bytes: int
    ) -> tuple[Data, npt.NDArray[np.float32], Vectors, Vectors | None, Vectors | None]:
        memory = self._coded.memory
        frame = parse_trr(memory[:HEADER_BYTES].tobytes())
        self._check(frame, index, n_bytes)
        raw = memory[:n_bytes]
        real = np.dtype(f">f{frame.real}")
        box = np.zeros(9, np.float32)
        if frame.box_at:
            box[:] = raw[frame.box_at : frame.box_at + 9 * frame.real].view(real)
        at = frame.vectors_at
        vectors: list[Vectors | None] = []
        for out, bit, factor in zip(self._vectors, (POSITIONS, VELOCITIES, FORCES), self._factors, strict=True):
            if not frame.fields & bit:
                vectors.append(None)
                continue
            end = at + 3 * self.n_atoms * frame.real
            out[:] = raw[at:end].view(real).reshape(-1, 3)
            np.multiply(out, np.float32(factor), out=out)
            vectors.append(out)
            at = end
        positions, velocities, forces = vectors
        assert positions is not None
        return {"step": frame.step, "lambda": frame.coupling}, box, positions, velocities, forces
