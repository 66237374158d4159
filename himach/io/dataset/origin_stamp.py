"""`OriginStamp`: an origin as it was when a store last had to do with it.

A stamp tells whether frames in a store are still those of the trajectory: `OriginStamp.compare` looks at the files'
sizes and times first, then at digests of their content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from himach.frame import RawFrame
from himach.io.trajectory.frame_directory import FrameDirectory
from himach.io.trajectory.keywords import TOPOLOGY_KEYWORDS
from himach.io.trajectory.manifest import TIMES
from himach.io.trajectory.origin import Origin

#: Of what is noted, and of how frames are read: what was kept under another version is not served any more.
VERSION = 2

#: Content that a digest covers: whole files where they have no more than this together, else blocks all over them.
DIGEST_BYTES = 64 << 20
BLOCK_BYTES = 1 << 16
#: Files of a frame directory that are looked at; where there are more, as many all over it.
MAX_FILES = 4096

Comparison = Literal["same", "grown", "changed"]


@dataclass(frozen=True)
class OriginStamp:
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
        Keywords of MDAnalysis that the dataset itself brings (see `FrameFile.keywords`), and those it was opened with
        that JSON holds; they are used where the origin is away.
    topologies
        Name of the attachment that each topology file is, by its absolute path; the one used last comes last.
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
    def of(cls, origin: Origin, keywords: Mapping[str, Any], known: Sequence[OriginStamp] = ()) -> OriginStamp:
        """Return the stamp of an origin that can be reached, as it is now.

        Reads `DIGEST_BYTES` of it at most, and nothing where a `known` stamp has the same files, sizes and times.
        """
        files = tuple(_file_stamp(path) for path in _files(origin))
        content = next((stamp.content for stamp in known if stamp.files == files), None)
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
            own_keywords={**origin.files()[0][0].keywords, **_plain(keywords)},
            seen=time.time(),
        )

    @classmethod
    def pushed(cls, name: str, generation: bytes, n_frames: int, first: Sequence[RawFrame]) -> OriginStamp:
        """Return the stamp of frames that a simulation pushed: they have no origin, and are known by their name alone.

        `n_frames` is one more than the last frame's number; `first` are one frame or two, neighbours, which tell what
        all are like.
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
    def parse(cls, content: bytes | None) -> OriginStamp | None:
        """Return the stamp that `encode` encoded; None if it is missing, damaged or of another version."""
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
        """Return the stamp as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, default=repr).encode()

    @property
    def generation(self) -> bytes:
        """What tells this content from another of the same name."""
        made_of = [VERSION, self.keywords, self.n_atoms, self.content, *(size for _, size, _ in self.files)]
        return hashlib.sha256(json.dumps(made_of).encode()).digest()

    def compare(self, now: OriginStamp) -> Comparison:
        """Tell whether the frames that were there at this stamp are those of the origin as it is `now`."""
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

    def with_topology(self, path: str, name: str) -> OriginStamp:
        """Return the stamp with a topology file, as the one used last."""
        others = {known: attached for known, attached in self.topologies.items() if known != path}
        return replace(self, topologies={**others, path: name})


def frame_keywords(keywords: Mapping[str, Any]) -> str:
    """Return, as JSON, those keywords of MDAnalysis on which frames depend (dt, format, ...)."""
    ours = {name: value for name, value in keywords.items() if name not in TOPOLOGY_KEYWORDS}
    return json.dumps(ours, sort_keys=True, default=repr)


def _plain(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return those keywords whose values JSON gives back; others, such as a guesser, are for the one call."""
    found = {}
    for name, value in keywords.items():
        with contextlib.suppress(TypeError, ValueError):
            found[name] = json.loads(json.dumps(value))
    return found


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


def _file_stamp(path: str) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:  # a file of a frame directory, which is missed when one of its frames is read
        return path, -1, 0
    return path, status.st_size, status.st_mtime_ns
