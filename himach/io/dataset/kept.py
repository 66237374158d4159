"""What a store keeps of an origin beside its frames: `Note`, and `KeptOrigin`, which stands for an origin that is away.

A note tells whether frames in a store are still those of the trajectory: `Note.verdict` compares sizes and times of the
files first, then digests of their content. `FILE` is the name that a note is kept under in a dataset.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.trajectory.frame_directory import FrameDirectory
from himach.io.trajectory.frame_file import TOPOLOGY_KEYWORDS
from himach.io.trajectory.manifest import TIMES
from himach.io.trajectory.origin import Origin, Times

__all__ = [
    "FILE",
    "INDEX_FILE",
    "TIMES_FILE",
    "KeptOrigin",
    "Note",
    "dataset_name",
    "digest",
    "frame_keywords",
    "times_from",
    "times_of",
]

FILE = "origin.json"
TIMES_FILE = "times"
INDEX_FILE = "index"
VERSION = 1

#: Content that a digest covers: whole files where they have no more than this together, else blocks all over them.
DIGEST_BYTES = 64 << 20
BLOCK_BYTES = 1 << 16
#: Files of a frame directory that are looked at; where there are more, as many all over it.
MAX_FILES = 4096

Verdict = Literal["same", "grown", "changed"]


@dataclass(frozen=True)
class Note:
    """An origin as it was when a store last had to do with it.

    Attributes
    ----------
    paths, kinds, n_frames, n_atoms, fingerprint, timestep, has_velocities, has_forces
        As those of `Origin`.
    keywords
        Keywords of MDAnalysis that say what the frames are, as JSON (see `frame_keywords`).
    part_frames
        Frames of each file that belong to the dataset.
    files
        Path, size and time of change (ns) of each file that was looked at.
    content
        `digest` of these files.
    own_keywords
        Keywords of MDAnalysis that the dataset itself brings (see `FrameFile.keywords`).
    topologies
        Name that each topology file is kept under, by its absolute path; the one used last comes last.
    seen
        When the origin was looked at, seconds since 1970.
    """

    paths: tuple[str, ...]
    kinds: tuple[str, ...]
    keywords: str
    part_frames: tuple[int, ...]
    n_frames: int
    n_atoms: int
    fingerprint: str
    timestep: float | None
    has_velocities: bool
    has_forces: bool
    files: tuple[tuple[str, int, int], ...]
    content: str
    own_keywords: Mapping[str, Any] = field(default_factory=dict)
    topologies: Mapping[str, str] = field(default_factory=dict)
    seen: float = 0.0

    @classmethod
    def of(cls, origin: Origin, keywords: Mapping[str, Any], known: Sequence[Note] = ()) -> Note:
        """Return the note on an origin that can be reached, as it is now.

        Reads `DIGEST_BYTES` of it at most, and nothing where a `known` note has the same files, sizes and times.
        """
        files = tuple(_stamp(path) for path in _files(origin))
        content = next((note.content for note in known if note.files == files), None)
        return cls(
            paths=origin.paths,
            kinds=origin.kinds,
            keywords=frame_keywords(keywords),
            part_frames=tuple(n_frames for _, n_frames in origin.files()),
            n_frames=origin.n_frames,
            n_atoms=origin.n_atoms,
            fingerprint=origin.fingerprint,
            timestep=origin.timestep,
            has_velocities=origin.has_velocities,
            has_forces=origin.has_forces,
            files=files,
            content=content or digest([(path, size) for path, size, _ in files]),
            own_keywords=dict(origin.files()[0][0].keywords),
            seen=time.time(),
        )

    @classmethod
    def pushed(cls, name: str, generation: bytes, n_frames: int, first: Sequence[RawFrame]) -> Note:
        """Return a note on frames that a simulation pushed: they have no origin, and are known by their name alone.

        Parameters
        ----------
        name, generation
            Of the dataset.
        n_frames
            One more than the last frame's number.
        first
            One frame or two, neighbours, which tell what all are like.
        """
        one, other = first[0], first[-1]
        between = other.number - one.number
        return cls(
            paths=(name,),
            kinds=("pushed",),
            keywords=frame_keywords({}),
            part_frames=(n_frames,),
            n_frames=n_frames,
            n_atoms=len(one.positions),
            fingerprint=hashlib.sha256(b"\0".join([name.encode(), generation])).hexdigest(),
            timestep=(other.time - one.time) / between if between else None,
            has_velocities=one.velocities is not None,
            has_forces=one.forces is not None,
            files=(),
            content=f"pushed {generation.hex()}",
        )

    @classmethod
    def parse(cls, content: bytes | None) -> Note | None:
        """Return the note that `encode` encoded; None if it is missing, damaged or of another version."""
        try:
            values = json.loads(content or b"")
            if values.pop("version") != VERSION:
                return None
            for name in ("paths", "kinds", "part_frames"):
                values[name] = tuple(values[name])
            values["files"] = tuple((str(path), int(size), int(changed)) for path, size, changed in values["files"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def encode(self) -> bytes:
        """Return the note as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, default=repr).encode()

    @property
    def generation(self) -> bytes:
        """What tells this content from another of the same name."""
        made_of = [self.keywords, self.n_atoms, self.content, *(size for _, size, _ in self.files)]
        return hashlib.sha256(json.dumps(made_of).encode()).digest()

    def verdict(self, now: Note) -> Verdict:
        """Tell whether the frames that were there at this note are those of the origin as it is `now`."""
        if (self.keywords, self.n_atoms, len(self.files)) != (now.keywords, now.n_atoms, len(now.files)):
            return "changed"
        if self.files == now.files or (self._sizes == now._sizes and self.content == now.content):
            return "same"
        # Only the last file may have grown: frames are numbered through.
        *others, last = zip(self.files, now.files, strict=True)
        grown = all(old[1] == new[1] for old, new in others) and last[0][1] < last[1][1]
        numbered = self.part_frames[:-1] == now.part_frames[:-1] and self.n_frames <= now.n_frames
        if not grown or not numbered or len(self.part_frames) != len(now.part_frames):
            return "changed"
        places = [(new[0], old[1]) for old, new in zip(self.files, now.files, strict=True)]
        return "grown" if digest(places) == self.content else "changed"

    @property
    def _sizes(self) -> list[int]:
        return [size for _, size, _ in self.files]

    def with_topology(self, path: str, name: str) -> Note:
        """Return the note with a topology file, as the one used last."""
        others = {known: kept for known, kept in self.topologies.items() if known != path}
        return replace(self, topologies={**others, path: name})


class KeptOrigin(Origin):
    """An origin that is away, as its note tells of it; it has only the frames that it is given.

    Parameters
    ----------
    note
        The note that a store kept.
    times
        Times of all frames, float64 (n_frames,), ps, where they were known without reading frames.
    keywords
        Keywords of MDAnalysis.
    """

    def __init__(self, note: Note, times: Times | None, keywords: Mapping[str, Any]) -> None:
        self._parts = []
        self._starts = np.zeros(1, dtype=np.int64)
        self._open_part = None
        self._times = times
        self._frames: dict[int, RawFrame] = {}
        self.keywords = {**note.own_keywords, **keywords}
        self.warnings = ()
        self.paths = note.paths
        self.kinds = note.kinds
        self.n_frames = note.n_frames
        self.n_atoms = note.n_atoms
        self.topology = None
        self.fingerprint = note.fingerprint
        self.has_velocities = note.has_velocities
        self.has_forces = note.has_forces
        self.timestep = note.timestep

    @property
    def present(self) -> bool:
        """Whether frames can be read from it."""
        return False

    def wanted(self, frames: range) -> list[int]:
        """Return the frames that setting up a run asks of an origin."""
        asked = {0, frames[0]}
        if self._times is None:
            middle = max(0, (len(frames) - 1) // 2)
            asked.update(frames[step] for step in (1, middle, middle + 1, -2, -1) if -len(frames) <= step < len(frames))
        return sorted(asked)

    def give(self, frames: Iterable[RawFrame]) -> None:
        """Give it frames that some cache holds."""
        self._frames.update((frame.number, frame) for frame in frames)

    def nbytes(self, numbers: Iterable[int]) -> int:
        """Return 0: nothing is read from it."""
        return 0

    def locate(self, number: int) -> tuple[str, int]:
        """Return the path of the dataset and the number."""
        return self.paths[0], number

    def _read(self, number: int, needed: int | None = None) -> RawFrame:
        if not 0 <= number < self.n_frames:
            raise UsageError(f"there is no frame {number}; {self.paths[0]} has {self.n_frames} frames, from 0")
        if number not in self._frames:
            raise TrajectoryError(
                f"frame {number} cannot be had: no cache gives it, and {self.paths[0]} cannot be reached; "
                "make it readable again, or select frames that are cached"
            )
        return self._frames[number]


def dataset_name(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Return the name of the dataset that these trajectory files make: its absolute path; of several, one for all."""
    absolute = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    first = os.fsencode(absolute[0]).decode("utf-8", "backslashreplace")
    if len(absolute) == 1:
        return first
    others = hashlib.sha256(b"\0".join(map(os.fsencode, absolute))).hexdigest()[:16]
    return f"{first} and {len(absolute) - 1} more ({others})"


def frame_keywords(keywords: Mapping[str, Any]) -> str:
    """Return, as JSON, those keywords of MDAnalysis on which frames depend (dt, format, ...)."""
    ours = {name: value for name, value in keywords.items() if name not in TOPOLOGY_KEYWORDS}
    return json.dumps(ours, sort_keys=True, default=repr)


def digest(files: Sequence[tuple[str, int]]) -> str:
    """Return the SHA-256 (hex) over the first so many bytes of files: all of them, or blocks all over them if many.

    Parameters
    ----------
    files
        Path and number of bytes of each; where a file is shorter the digest is another.
    """
    there = [(path, size) for path, size in files if size > 0]
    total = sum(size for _, size in there)
    share = DIGEST_BYTES // max(1, len(there))
    result = hashlib.sha256()
    for path, size in there:
        with open(path, "rb", buffering=0) as file:
            for place, length in _blocks(size, size if total <= DIGEST_BYTES else share):
                result.update(os.pread(file.fileno(), length, place))
    return result.hexdigest()


def _blocks(size: int, share: int) -> list[tuple[int, int]]:
    """Return place and length of blocks that are spread evenly over a file, its first and last bytes among them."""
    if size <= share:
        return [(place, min(1 << 20, size - place)) for place in range(0, size, 1 << 20)]
    length = min(BLOCK_BYTES, share // 2)
    count = share // length
    return [(index * (size - length) // (count - 1), length) for index in range(count)]


def _files(origin: Origin) -> list[str]:
    """Return the files whose content tells the origin from another."""
    found: list[str] = []
    for file, _ in origin.files():
        found += file.stamps
        if isinstance(file, FrameDirectory):
            n_files = file.manifest.n_files
            some = range(n_files) if n_files <= MAX_FILES else [i * n_files // MAX_FILES for i in range(MAX_FILES)]
            found += [os.path.join(file.path, name) for name in (TIMES, *map(file.manifest.file_name, some))]
    return list(dict.fromkeys(found))


def _stamp(path: str) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:  # a file of a frame directory, which is missed when one of its frames is read
        return path, -1, 0
    return path, status.st_size, status.st_mtime_ns


def times_of(origin: Origin) -> bytes | None:
    """Return the times of all frames as they are kept, or None where a format does not tell them."""
    return None if origin._times is None else np.ascontiguousarray(origin._times, dtype="<f8").tobytes()


def times_from(content: bytes | None, n_frames: int) -> Times | None:
    """Return the times that `times_of` encoded, or None."""
    if content is None or len(content) != 8 * n_frames:
        return None
    return np.frombuffer(content, dtype="<f8").astype(np.float64)
