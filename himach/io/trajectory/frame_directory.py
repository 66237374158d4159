"""Frame directories as a source of frames: `FrameDirectory`, one of the kinds of `FrameFile`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError, TrajectoryError
from himach.frame import RawFrame
from himach.io.trajectory.index.timeline import EvenTimeline, StoredTimeline, Timeline
from himach.io.trajectory.index.walk import read_index
from himach.io.trajectory.manifest import TIMES, Manifest, find
from himach.io.trajectory.messages import reason
from himach.io.trajectory.readahead import ask_for
from himach.io.trajectory.reader_file import ReaderFile, construct
from himach.io.trajectory.xdr_file import FrameFile, XdrFile


class FrameDirectory(FrameFile):
    """A frame directory. Opening reads the manifest and the times' header, no frame file; the last file stays open."""

    def __init__(self, path: str, keywords: Mapping[str, Any]) -> None:
        super().__init__(path)
        manifest_path = find(path)
        self.manifest = manifest = Manifest.read(manifest_path)
        self.kind = f"frame directory ({manifest.kind})"
        self.n_frames = manifest.frames
        self.n_atoms = manifest.atoms
        self.keywords = manifest.keywords
        self.topology = None if manifest.topology is None else os.path.join(path, manifest.topology)
        end_numbers = (0, manifest.n_files - 1)
        self.stamps = (manifest_path, *(os.path.join(path, manifest.file_name(number)) for number in end_numbers))
        self.rewritten = (manifest_path, os.path.join(path, TIMES))
        for stamp in self.stamps:
            if not os.path.exists(stamp):
                raise TrajectoryError(f"{stamp} is missing from the frame directory; copy it again or split again")
        self.timed = keywords.get("dt") is None
        offset = float(keywords.get("time_offset", 0.0))
        self.times = self._open_times(offset)
        if not self.timed:
            self.times = EvenTimeline(self.n_frames, float(keywords["dt"]), 0.0, offset)
        self._open_number = -1
        self._open_file: XdrFile | ReaderFile | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_number": -1, "_open_file": None}

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a frame; its arrays are valid until the next read."""
        number, local = divmod(index, self.manifest.frames_per_file)
        file = self._file(number)
        try:
            frame = file.read(local, needed)
        except Exception as error:
            raise TrajectoryError(
                f"frame {index} cannot be read from {file.path}: {reason(error)}; copy the file again or split again"
            ) from error
        assert self.times is not None
        frame.number = index
        frame.time = float(self.times[index])
        return frame

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of the files of these frames."""
        for number in sorted({index // self.manifest.frames_per_file for index in indices}):
            if number != self._open_number:
                ask_for(self._path(number), [(0, 0)])  # no length: to the end of the file

    def nbytes(self, indices: npt.NDArray[np.int64]) -> int:
        """Return the bytes that these frames take; by the mean for part of a file that is not open."""
        total = 0
        numbers = indices // self.manifest.frames_per_file
        for number in np.unique(numbers).tolist():
            local = indices[numbers == number] - number * self.manifest.frames_per_file
            if number == self._open_number and self._open_file is not None:
                total += self._open_file.nbytes(local)
            else:
                size = os.path.getsize(self._path(number))
                total += round(size * len(local) / self.manifest.frames_in(number))
        return total

    def content(self, limit: int) -> list[str]:
        """Return the files that hold the trajectory's content, a spread sample if they are more than `limit`."""
        count = self.manifest.n_files
        numbers = range(count) if count <= limit else [i * count // limit for i in range(limit)]
        return [*self.stamps, os.path.join(self.path, TIMES), *map(self._path, numbers)]

    def frame_files(self, indices: npt.NDArray[np.int64]) -> set[str]:
        """Return the files of these frames."""
        return set(map(self._path, np.unique(indices // self.manifest.frames_per_file).tolist()))

    def release(self) -> None:
        """Close the open file until the next read."""
        if self._open_file is not None:
            self._open_file.release()
        self._open_number, self._open_file = -1, None

    def _path(self, number: int) -> str:
        return os.path.join(self.path, self.manifest.file_name(number))

    def _file(self, number: int) -> XdrFile | ReaderFile:
        if number != self._open_number or self._open_file is None:
            self.release()
            self._open_file = self._open_numbered(number)
            self._open_number = number
        return self._open_file

    def _open_numbered(self, number: int) -> XdrFile | ReaderFile:
        path = self._path(number)
        try:
            file = _open(path, self.manifest.kind)
        except FileNotFoundError:
            raise TrajectoryError(f"{path} is missing from the frame directory; copy it again or split again") from None
        except HimachError:
            raise
        except Exception as error:
            raise TrajectoryError(f"{path} cannot be read as {self.manifest.kind}: {reason(error)}") from error
        expected = self.manifest.frames_in(number)
        if file.n_frames != expected or file.n_atoms != self.n_atoms:
            raise TrajectoryError(
                f"{path} holds {file.n_frames} whole frames of {file.n_atoms} atoms, not {expected} of {self.n_atoms}; "
                "copy the file again or split again"
            )
        return file

    def _open_times(self, offset: float) -> Timeline:
        path = os.path.join(self.path, TIMES)
        try:
            with open(path, "rb") as file:
                version = np.lib.format.read_magic(file)
                if version != (1, 0):
                    raise ValueError(f"its version is {version}")
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                start = file.tell()
                size = file.seek(0, os.SEEK_END) - start
        except Exception as error:  # numpy raises errors of many kinds for a damaged header
            raise TrajectoryError(f"{path} cannot be read: {reason(error)}") from error
        if dtype != np.float64 or shape != (self.n_frames,) or size != 8 * self.n_frames:
            raise TrajectoryError(f"{path} is no float64 array of {self.n_frames} times; split again")
        return StoredTimeline(path, start, self.n_frames, offset)


def _open(path: str, kind: str) -> XdrFile | ReaderFile:
    if kind != "NCDF":
        return XdrFile(path, read_index(path, kind), {})
    from MDAnalysis.coordinates.TRJ import NCDFReader

    with open(path, "rb"):  # a missing file is another error
        reader = construct(NCDFReader, path)
    return ReaderFile(path, reader, int(reader.n_frames))
