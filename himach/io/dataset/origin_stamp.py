"""`OriginStamp`: an origin as it was when a store last had to do with it.

A stamp tells whether frames in a store are still those of the trajectory: `OriginStamp.compare` looks at the files'
sizes and times first, then at digests of their content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.dataset.origin_content import FileState, content_files, digest, sketch
from himach.io.store.bodhi import crc32c
from himach.io.trajectory.keywords import TOPOLOGY_KEYWORDS
from himach.io.trajectory.origin import PUSHED, Origin

#: Of what is noted, and of how frames are read: what was kept under another version is not served any more.
VERSION = 2

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
        Each file that was looked at.
    content
        `digest` of these files.
    sketch
        `sketch` of them; of pushed frames, number and content of the first one.
    own_keywords
        Keywords of MDAnalysis that the dataset itself brings (see `FrameFile.keywords`), and those it was opened with
        that JSON holds; they are used where the origin is away.
    topologies
        Name of the attachment that each topology file is, by its absolute path; the one used last comes last.
    sequence
        Of the contents that the origin has had, the one with the highest number is the last: each gets a number above
        those of all others that stores know when it is found. Clocks of nodes differ.
    seen
        When the origin was looked at, seconds since 1970 by the clock of whoever did: for people, and no order.
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
    files: tuple[FileState, ...]
    content: str
    sketch: str = ""
    own_keywords: Mapping[str, Any] = field(default_factory=dict)
    topologies: Mapping[str, str] = field(default_factory=dict)
    sequence: int = 0
    seen: float = 0.0

    @classmethod
    def of(cls, origin: Origin, keywords: Mapping[str, Any], known: Sequence[OriginStamp] = ()) -> OriginStamp:
        """Return the stamp of an origin that can be reached, as it is now.

        Reads `DIGEST_BYTES` of it at most, and nothing where a `known` stamp has the same files, sizes and times.
        """
        files = tuple(map(FileState.of, content_files(origin)))
        same = next((stamp for stamp in known if stamp.files == files), None)
        content = digest(files) if same is None else same.content
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
            content=content,
            sketch=sketch(files) if same is None else same.sketch,
            own_keywords={**origin.files()[0][0].keywords, **_plain(keywords)},
            sequence=_sequence(content, known),
            seen=time.time(),
        )

    @property
    def is_pushed(self) -> bool:
        """Whether a simulation pushed the frames, so that there is no origin."""
        return self.kinds == (PUSHED,)

    @classmethod
    def pushed(cls, name: str, generation: bytes, n_frames: int, first: Sequence[RawFrame]) -> OriginStamp:
        """Return the stamp of frames that a simulation pushed: they have no origin, and are known by their name alone.

        `n_frames` is one more than the last frame's number; `first` are one frame or two, neighbours, which tell what
        all are like.
        """
        one, other = first[0], first[-1]
        between = other.number - one.number
        seen = crc32c(memoryview(one.positions).cast("B"))
        return cls(
            paths=(name,),
            kinds=(PUSHED,),
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
            sketch=f"frame {one.number:020d} {seen:08x}",  # the least is of the frame of the lowest number
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
            values["files"] = tuple(FileState(str(path), *map(int, state)) for path, *state in values["files"])
            values["sequence"] = int(values["sequence"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def encode(self) -> bytes:
        """Return the stamp as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, default=repr).encode()

    @property
    def generation(self) -> bytes:
        """What tells this content from another of the same name."""
        made_of = [VERSION, self.keywords, self.n_atoms, self.content, *self._sizes]
        return hashlib.sha256(json.dumps(made_of).encode()).digest()

    def compare(self, now: OriginStamp) -> Comparison:
        """Tell whether the frames that were there at this stamp are those of the origin as it is `now`."""
        if (self.keywords, self.n_atoms, len(self.files)) != (now.keywords, now.n_atoms, len(now.files)):
            return "changed"
        if self.files == now.files or (self._sizes == now._sizes and self.content == now.content):
            return "same"
        # Only the last file may have grown: frames are numbered through.
        *others, last = zip(self.files, now.files, strict=True)
        grown = all(old.size == new.size for old, new in others) and last[0].size < last[1].size
        numbered = self.part_frames[:-1] == now.part_frames[:-1] and self.n_frames <= now.n_frames
        if not grown or not numbered or len(self.part_frames) != len(now.part_frames):
            return "changed"
        places = [FileState(new.path, old.size) for old, new in zip(self.files, now.files, strict=True)]
        return "grown" if digest(places) == self.content else "changed"

    @property
    def _sizes(self) -> list[int]:
        return [file.size for file in self.files]

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


def _sequence(content: str, known: Sequence[OriginStamp]) -> int:
    """Return the place of a content that is the origin's now among those that it is known to have had."""
    last = max((stamp.sequence for stamp in known), default=0)
    others = any(stamp.sequence == last and stamp.content != content for stamp in known)
    return last + 1 if others else max(1, last)


def latest(stamps: Sequence[OriginStamp]) -> OriginStamp:
    """Return which of several stamps of an origin that is away is the last.

    Raises
    ------
    UsageError
        If stores that never knew of each other have different contents of it.
    """
    last = max(stamp.sequence for stamp in stamps)
    newest = [stamp for stamp in stamps if stamp.sequence == last]
    best = max(newest, key=lambda stamp: stamp.n_frames)
    if best.files and any(stamp.content != best.content for stamp in newest):
        raise UsageError(
            f"{best.paths[0]} is away, and caches have frames of several contents that it had, none of which is known "
            "to be the last; make it readable, or evict it from the caches that are behind: himach cache evict DATASET"
        )
    return best
