"""Files read by MDAnalysis's readers: `ReaderFile`."""

import contextlib
import math
import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.trajectories.file_failures import quietly
from himach.io.trajectories.readahead import ask_for
from himach.io.trajectories.timeline import Times, even_times
from himach.io.trajectories.urls.byte_file import fetch, read_status
from himach.io.trajectories.urls.mirror import Records
from himach.io.trajectories.urls.url_names import is_url
from himach.io.trajectories.xdr_file import FrameFile

#: Keys of a timestep's data for the frame's time.
_TIME = frozenset({"time", "dt", "time_offset"})


class ReaderFile(FrameFile):
    """A file read by a reader of MDAnalysis.

    The opened reader is sent as a pickle with the index that it built, and reopens the file from that. If frames can
    only be read in order, it is opened anew and read from the first frame on.
    """

    _reader: Any

    def __init__(
        self,
        path: str,
        reader: Any,
        n_frames: int,
        ordered: bool = False,
        records: Records | None = None,
    ) -> None:
        super().__init__(path)
        self.kind = str(np.atleast_1d(reader.format)[0])
        self.n_frames = n_frames
        self.n_atoms = int(reader.n_atoms)
        self.timed = "time" in reader.ts.data and reader._kwargs.get("dt") is None
        self.times = _reader_times(reader, self.kind, n_frames)
        self._size = read_status(path).size
        self._bytes_per_frame = self._size / n_frames
        self._remake = (type(reader), reader._kwargs)  # as the reader's own copy() does
        self._ordered = ordered
        self._state = None if ordered or is_url(path) else _pickle(reader)
        self.records = records
        self._reader = reader
        if ordered:
            self.release()

    def _forget(self) -> None:
        super()._forget()
        self._reader = None
        self._at = -1  # frame at which the reader is; -1: unknown, so it must seek

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a whole frame; its arrays are valid until the next read."""
        if is_url(self.path):
            fetch(self.path, () if self.records is None else [self.records.place(index)])
        elif self.kind == "NCDF" and os.path.getsize(self.path) < self._size:  # mapped: reads past the end raise SIGBUS
            raise ValueError("the file has become shorter since it was opened")
        ts = self._move(index)
        box = ts.dimensions
        return RawFrame(
            index,
            float(ts.time if self.times is None else self.times[index]),
            _vectors(ts.positions),
            None if box is None else np.array(box, dtype=np.float32),
            _vectors(ts.velocities) if ts.has_velocities else None,
            _vectors(ts.forces) if ts.has_forces else None,
            data={name: value for name, value in ts.data.items() if name not in _TIME},
        )

    def _move(self, index: int) -> Any:
        """Return the reader's timestep at a frame, after checking that it is this frame."""
        at, self._at = self._at, -1
        ts = self._step_to(at, index) if self._ordered else self._seek_to(at, index)
        self._check(ts, index)
        self._at = index
        return ts

    def _step_to(self, at: int, index: int) -> Any:
        if not 0 <= at <= index:
            self.release()
            at = 0
        reader = self._get_reader()  # at frame 0 if just opened
        for number in range(at + 1, index + 1):
            try:
                reader.next()
            except StopIteration:  # hides the reason
                raise ValueError(f"the reader finds no frame {number} in the file") from None
        return reader.ts

    def _seek_to(self, at: int, index: int) -> Any:
        # A reader just opened or unpickled claims to be at frame 0, but its file may be at any position.
        reader = self._get_reader()
        if not 0 <= at == index - 1:
            return reader[index]
        try:
            return reader.next()
        except StopIteration:  # hides the reason
            return reader[index]

    def _check(self, ts: Any, index: int) -> None:
        """Raise ValueError if the number or time is that of another frame."""
        if not self._ordered and self.n_frames > 1 and ts.frame != index:  # some formats number a single frame -1
            raise ValueError(f"the reader gives frame {ts.frame} of the file for frame {index}")
        if self.times is None or "time" not in ts.data:
            return
        expected = float(self.times[index])
        if not math.isclose(ts.time, expected, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(
                f"the reader gives a frame at {ts.time:g} ps, where there was one at {expected:g} ps when the file was "
                "opened"
            )

    def _get_reader(self) -> Any:
        if self._reader is None:
            if self._state is not None:
                self._reader = pickle.loads(self._state)
            else:
                reader_class, keywords = self._remake
                if is_url(self.path):
                    opening = () if self.records is None else self.records.opening()
                    keywords = {**keywords, "filename": fetch(self.path, opening)}
                self._reader = construct(reader_class, **keywords)
        return self._reader

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of these frames, at their records or as if all had one size."""
        if self.records is not None:
            ask_for(self.path, map(self.records.place, indices))
            return
        size = self._bytes_per_frame
        ask_for(self.path, ((int(size * index), int(size * (index + 1))) for index in indices))

    def release(self) -> None:
        """Close the file until the next read."""
        reader, self._reader, self._at = self._reader, None, -1
        if reader is not None:
            with contextlib.suppress(OSError):  # the file server may be away
                reader.close()
        super().release()


def _reader_times(reader: Any, kind: str, n_frames: int) -> Times | None:
    """Return the reader's times of frames if that needs no frames read, else None."""
    offset = float(reader.ts.data.get("time_offset", 0.0))
    if "time" not in reader.ts.data:
        return even_times(n_frames, float(reader.ts.dt), 0.0, offset)
    if kind == "NCDF" and reader.scale_factors["time"] is None:
        times = np.array(reader.trjfile.variables["time"][:n_frames], dtype=np.float64)
        return times + offset
    return None


def _pickle(reader: Any) -> bytes | None:
    try:
        return pickle.dumps(reader)
    except Exception:  # a few readers (H5MD on MPI, streams) cannot be pickled; they are opened anew
        return None


def construct(reader_class: Any, *words: Any, **keywords: Any) -> Any:
    """Make a reader of MDAnalysis; prevent a traceback from __del__ of a reader that fails to open."""
    reader = reader_class.__new__(reader_class)
    try:
        quietly(reader.__init__, *words, **keywords)
    except BaseException:
        reader.__dict__.update(_auxs={}, close=lambda: None)
        raise
    return reader


def _vectors(array: Any) -> npt.NDArray[np.float32]:
    return np.require(array, dtype=np.float32, requirements=["C", "W"])
