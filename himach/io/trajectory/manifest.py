"""The manifest of a frame directory: `Manifest`, which is checked on reading and written last.

A frame directory holds numbered files of a format that other tools open, `times.npy` with every frame's time, and
`himach.json`, the manifest. Numbered file k holds the frames k * frames_per_file and following.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from himach.errors import TrajectoryError, UsageError
from himach.files import whole_file

MANIFEST = "himach.json"
PARTIAL = "himach.json.partial"
TIMES = "times.npy"
FORMAT = "himach frame directory"
VERSION = 1
KINDS = ("XTC", "TRR", "NCDF")
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
    kind: str  # format of the files: XTC, TRR or NCDF
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
    def read(cls, path: str) -> Manifest:
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
        for name in ("frames", "atoms", "frames_per_file"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise TrajectoryError(f"{path}: {name} is {value!r}, not a positive integer")
        if self.kind not in KINDS:
            raise TrajectoryError(f"{path}: kind is {self.kind!r}, not one of {', '.join(KINDS)}")
        if not isinstance(self.pattern, str) or not _PATTERN.fullmatch(self.pattern):
            raise TrajectoryError(
                f"{path}: pattern {self.pattern!r} is no file name with a number, as frames-%06d.xtc is"
            )
        if self.topology is not None and not (isinstance(self.topology, str) and _NAME.fullmatch(self.topology)):
            raise TrajectoryError(f"{path}: topology {self.topology!r} is no name of a file in the directory")
        if not isinstance(self.keywords, dict) or not isinstance(self.source, str):
            raise TrajectoryError(f"{path}: keywords must be an object and source a string")


def find(directory: str) -> str:
    """Return the path of a directory's manifest; raises UsageError if the directory holds none."""
    path = os.path.join(directory, MANIFEST)
    if os.path.exists(path):
        return path
    if os.path.exists(os.path.join(directory, PARTIAL)):
        raise UsageError(f"{directory} is a frame directory that was not finished; run himach split again to finish it")
    raise UsageError(
        f"{directory} is a folder, and no frame directory (it holds no {MANIFEST}, which is written last); give "
        "trajectory files, or make one with himach split"
    )
