"""Frame directories as a source of frames: `FrameDirectory`, a `FrameFile`, and its `Manifest`.

A frame directory holds numbered files of a format that other tools open, `times.npy` with every frame's time, and
`himach.json`, the manifest, which is checked on reading and written last. Numbered file k holds the frames
k * frames_per_file and following.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.files import whole_file
from himach.frame import RawFrame
from himach.io.trajectories.file_failures import reason
from himach.io.trajectories.readahead import ask_for
from himach.io.trajectories.timeline import Times
from himach.io.trajectories.xdr_file import FrameFile, XdrFile
from himach.io.trajectories.xdr_index import read_index

MANIFEST = "himach.json"
TIMES = "times.npy"
FORMAT = "himach frame directory"
VERSION = 1
KINDS = ["XTC", "TRR"]
_PATTERN = re.compile(
    r"(?P<before>[A-Za-z0-9_-][A-Za-z0-9_.-]*)%0(?P<digits>[1-9])d(?P<after>[A-Za-z0-9_.-]*)", re.ASCII
)
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", re.ASCII)


@dataclass(frozen=True)
class Manifest:
    """Description of a frame directory."""

    frames: int
    atoms: int
    frames_per_file: int  # frames in every file but the last
    kind: str  # format of the files, of `KINDS`
    pattern: str  # ``pattern % k`` is the name of file k, in the directory itself
    topology: str | None  # name of the topology file in the directory
    keywords: Mapping[str, Any]  # keywords of MDAnalysis for the topology
    source: str  # fingerprint of the trajectory that was split, and the selected frames

    @property
    def n_files(self) -> int:
        """Number of frame files."""
        return -(-self.frames // self.frames_per_file)

    def frames_in(self, number: int) -> int:
        """Return the number of frames in file `number`."""
        return min(self.frames_per_file, self.frames - number * self.frames_per_file)

    def file_name(self, number: int) -> str:
        """Return the name of file `number`."""
        return self.pattern % number

    def write(self, path: str) -> None:
        """Write the manifest atomically."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2)
        with whole_file(path, sync=True) as file:
            file.write(f"{text}\n".encode())

    @classmethod
    def read(cls, path: str) -> "Manifest":
        """Read and check a manifest."""
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as error:
            raise TrajectoryError(f"{path} cannot be read: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise TrajectoryError(f"{path} is no manifest of a frame directory")
        if content.get("version") != VERSION:
            raise TrajectoryError(
                f"{path} has version {content.get('version')!r}, this himach reads version {VERSION}; update himach"
            )
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in content]
        if missing:
            raise TrajectoryError(f"{path} lacks {', '.join(missing)}")
        manifest = cls(**{name: content[name] for name in names})
        manifest._check(path)
        return manifest

    def _check(self, path: str) -> None:
        counts = {name: getattr(self, name) for name in ("frames", "atoms", "frames_per_file")}
        valid = {
            **{name: type(value) is int and value > 0 for name, value in counts.items()},
            "kind": self.kind in KINDS,
            "pattern": isinstance(self.pattern, str) and _PATTERN.fullmatch(self.pattern),
            "topology": self.topology is None or (isinstance(self.topology, str) and _NAME.fullmatch(self.topology)),
            "keywords": isinstance(self.keywords, dict),
            "source": isinstance(self.source, str),
        }
        for name, is_valid in valid.items():
            if not is_valid:
                raise TrajectoryError(f"{path}: {name} cannot be {getattr(self, name)!r}; copy it again or split again")


def find(directory: str) -> str:
    """Return the path of a directory's manifest; raises UsageError if the directory holds none."""
    path = os.path.join(directory, MANIFEST)
    if os.path.exists(path):
        return path
    raise UsageError(
        f"{directory} is a folder, and no frame directory (it holds no {MANIFEST}, which is written last); give "
        "trajectory files, or make one with himach split"
    )


class FrameDirectory(FrameFile):
    """A frame directory. Opening reads the manifest and the times, no frame file; the last file stays open."""

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
        for stamp in self.stamps:
            if not os.path.exists(stamp):
                raise TrajectoryError(f"{stamp} is missing from the frame directory; copy it again or split again")
        self._set_times(self._read_times(), keywords.get("dt"), keywords.get("time_offset", 0.0))

    def _forget(self) -> None:
        super()._forget()
        self._open_number = -1
        self._open_file: XdrFile | None = None

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a frame; its arrays are valid until the next read."""
        number, local = divmod(index, self.manifest.frames_per_file)
        file = self._get_file(number)
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
        """Return the bytes that these frames take, by the mean of each file."""
        numbers, counts = np.unique(indices // self.manifest.frames_per_file, return_counts=True)
        return sum(
            round(os.path.getsize(self._path(number)) * count / self.manifest.frames_in(number))
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        )

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
        self._forget()

    def _path(self, number: int) -> str:
        return os.path.join(self.path, self.manifest.file_name(number))

    def _get_file(self, number: int) -> XdrFile:
        if number == self._open_number and self._open_file is not None:
            return self._open_file
        self.release()
        path = self._path(number)
        try:
            file = XdrFile(path, read_index(path, self.manifest.kind), {})
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
        self._open_number, self._open_file = number, file
        return file

    def _read_times(self) -> Times:
        path = os.path.join(self.path, TIMES)
        try:
            with open(path, "rb") as file:
                times: Times = np.load(file)
                rest = file.read(1)
        except Exception as error:  # numpy raises errors of many kinds for a damaged header
            raise TrajectoryError(f"{path} cannot be read: {reason(error)}") from error
        if times.dtype != np.float64 or times.shape != (self.n_frames,) or rest:
            raise TrajectoryError(f"{path} is no float64 array of {self.n_frames} times; split again")
        return times
