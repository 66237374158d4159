"""Files that a reader of MDAnalysis reads: `ReaderFile`, and `whole_frames()`, which notices a file cut off."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.trajectory.messages import warn_cut
from himach.io.trajectory.readahead import ask_for

Times = npt.NDArray[np.float64]


class ReaderFile:
    """A file that a reader of MDAnalysis reads.

    The opened reader travels as a pickle, with the index that it built; the file is opened again from that.
    """

    present = True

    def __init__(self, path: str, reader: Any, n_frames: int) -> None:
        self.path = path
        self.stamps: tuple[str, ...] = (path,)
        self.topology: str | None = None
        self.keywords: Mapping[str, Any] = {}
        self.kind = str(np.atleast_1d(reader.format)[0])
        self.n_frames = n_frames
        self.n_atoms = int(reader.n_atoms)
        self.timed = "time" in reader.ts.data and reader._kwargs.get("dt") is None
        self.times = _known_times(reader, self.kind, n_frames)
        self._size = os.path.getsize(path)
        self._bytes_per_frame = self._size / n_frames
        self._reader = reader
        self._remake = (type(reader), {**reader._kwargs, "path": path})
        self._remake[1].pop("filename", None)
        self._state = _pickle(reader)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return one frame, all of it; its arrays hold until the next."""
        if self.kind == "NCDF" and os.path.getsize(self.path) < self._size:  # mapped: reading behind its end is SIGBUS
            raise ValueError("the file has become shorter since it was opened")
        reader = self._opened()
        if reader.ts.frame == index - 1:
            try:
                ts = reader.next()
            except StopIteration:  # hides the reason
                ts = reader[index]
        else:
            ts = reader[index]
        box = ts.dimensions
        return RawFrame(
            index,
            float(ts.time if self.times is None else self.times[index]),
            _vectors(ts.positions),
            None if box is None else np.array(box, dtype=np.float32),
            _vectors(ts.velocities) if ts.has_velocities else None,
            _vectors(ts.forces) if ts.has_forces else None,
        )

    def _opened(self) -> Any:
        if self._reader is None:
            if self._state is not None:
                self._reader = pickle.loads(self._state)
            else:
                reader_class, keywords = self._remake
                self._reader = construct(reader_class, **keywords)
        return self._reader

    def expect(self, indices: Sequence[int]) -> None:
        """Ask for the bytes of these frames: where they lie if all are of one size."""
        size = self._bytes_per_frame
        ask_for(self.path, ((int(size * index), int(size * (index + 1))) for index in indices))

    def nbytes(self, indices: npt.NDArray[np.int64]) -> int:
        """Return the bytes that as many frames take in the file on average."""
        return round(len(indices) * self._bytes_per_frame)

    def release(self) -> None:
        """Close the file until the next read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with contextlib.suppress(OSError):  # the file server may be away
                reader.close()


def whole_frames(path: str, kind: str, reader: Any) -> int:
    """Return the number of whole frames, with a warning if the last one was never finished."""
    n_frames = int(reader.n_frames)
    if kind == "DCD":
        cut = _dcd_rest(path, int(reader.n_atoms))
    elif kind == "XYZ":
        cut = _xyz_rest(path, reader, n_frames)
    elif kind == "TRJ":
        cut = _trj_rest(path, reader)
    else:
        cut = False
    if n_frames > 1 and not cut:
        try:
            quietly(reader.__getitem__, n_frames - 1)
        except Exception:
            n_frames -= 1
            cut = True
        quietly(reader.__getitem__, 0)
    if cut:
        warn_cut(path, n_frames)
    return n_frames


def _dcd_rest(path: str, n_atoms: int) -> bool:
    """Whether bytes of an unfinished frame follow the last frame of a DCD file (libdcd counts whole ones only)."""
    with open(path, "rb") as file:
        order = "<" if file.read(4) == struct.pack("<i", 84) else ">"
        control = struct.unpack(f"{order}4s20i", file.read(84))[1:]
        file.seek(92)
        (title,) = struct.unpack(f"{order}i", file.read(4))
        size = file.seek(0, os.SEEK_END)
    charmm = control[19] != 0
    dimensions = 4 if charmm and control[11] == 1 else 3
    cell = 56 if charmm and control[10] else 0
    n_fixed = control[8]
    header = 92 + 8 + title + 12 + (4 * (n_atoms - n_fixed) + 8 if n_fixed else 0)
    first = 4 * dimensions * (n_atoms + 2) + cell
    later = 4 * dimensions * (n_atoms - n_fixed + 2) + cell
    return bool(size > header + first and (size - header - first) % later)


def _xyz_rest(path: str, reader: Any, n_frames: int) -> bool:
    """Whether lines of an unfinished frame follow the last whole frame of an XYZ file."""
    offsets = getattr(reader, "_offsets", [])
    if len(offsets) <= n_frames or path.endswith((".gz", ".bz2")):
        return False
    with open(path, "rb") as file:
        file.seek(offsets[n_frames])
        return bool(file.read(4096).strip())


def _trj_rest(path: str, reader: Any) -> bool:
    """Whether lines of an unfinished frame follow the last one of an AMBER text file, whose frames have one size."""
    offsets = reader._offsets
    if len(offsets) < 2 or path.endswith((".gz", ".bz2")):
        return False
    return bool((os.path.getsize(path) - offsets[0]) % (offsets[1] - offsets[0]) > 1)


def _known_times(reader: Any, kind: str, n_frames: int) -> Times | None:
    """Return the times that the reader gives the frames, where that takes no reading of frames."""
    counts = np.arange(n_frames, dtype=np.float64)
    if "time" not in reader.ts.data:
        times = counts * float(reader.ts.dt)
    elif kind == "DCD":
        header = reader._file.header
        times = (counts + header["istart"] / header["nsavc"]) * float(reader.ts.dt)
    elif kind == "NCDF" and reader.scale_factors["time"] is None:
        times = np.array(reader.trjfile.variables["time"][:n_frames], dtype=np.float64)
    else:
        return None
    return times + float(reader.ts.data.get("time_offset", 0.0))


def _pickle(reader: Any) -> bytes | None:
    try:
        return pickle.dumps(reader)
    except Exception:  # a few readers (H5MD on MPI, streams) cannot; they are opened anew
        return None


def quietly(call: Any, *args: Any, **keywords: Any) -> Any:
    """Call a reader of MDAnalysis without the warnings that speak to its developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return call(*args, **keywords)


def construct(reader_class: Any, path: str, **keywords: Any) -> Any:
    """Make a reader of MDAnalysis; one that fails to open dies in silence, not with a traceback from its __del__."""
    reader = reader_class.__new__(reader_class)
    try:
        quietly(reader.__init__, path, **keywords)
    except BaseException:
        reader.__dict__.update(_auxs={}, close=lambda: None)
        raise
    return reader


def _vectors(array: Any) -> npt.NDArray[np.float32]:
    return np.require(array, dtype=np.float32, requirements=["C", "W"])
