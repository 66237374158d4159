"""`OriginStamp`: an origin when a store last used it. `OriginWatch`: whether it still is as the first rank opened it.

Files with equal sizes and times are unchanged; else a `digest` of their content decides.
"""

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.store.bodhi import crc32c
from himach.io.trajectories.file_failures import retry
from himach.io.trajectories.keywords import TOPOLOGY_KEYWORDS
from himach.io.trajectories.origin import PUSHED, Origin
from himach.io.trajectories.urls.byte_file import read_status
from himach.io.trajectories.urls.url_names import absolute, is_url

#: Version of the stamp and of how frames are read; frames kept under another version are not served.
VERSION = 3
#: Bytes that a digest covers: whole files up to this total, else blocks spread over them.
DIGEST_BYTES = 8 << 20
BLOCK_BYTES = 1 << 16
#: Files of a directory to check; if it has more, this many spread over it.
MAX_FILES = 4096

Comparison = Literal["same", "grown", "changed"]


class FileState(NamedTuple):
    """State of a file."""

    path: str
    size: int  # bytes; -1 if missing or not readable
    modified: int = 0
    changed: int = 0

    @classmethod
    def from_path(cls, path: str, fresh: bool = False) -> "FileState":
        """Return the state of a file; `fresh` opens it, which makes a network file system ask its server."""
        try:
            if fresh and not is_url(path):
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            return cls(path, *read_status(path))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM):
                return cls(path, -1)
            raise


def content_files(origin: Origin) -> list[str]:
    """Return the files whose content identifies the origin."""
    paths: list[str] = []
    for file in origin.files:
        paths += [*file.stamps, *file.content(MAX_FILES)]
    return list(dict.fromkeys(paths))


@dataclass(frozen=True)
class OriginStamp:
    """State of an origin when a store last used it."""

    paths: tuple[str, ...]
    kinds: tuple[str, ...]
    keywords: str  # MDAnalysis keywords that affect frames, as JSON (see `frame_keywords`)
    part_frames: tuple[int, ...]  # frames of each file
    n_frames: int
    n_atoms: int
    fingerprint: str
    timestep: float | None
    has_velocities: bool
    has_forces: bool
    files: tuple[FileState, ...]  # the `content_files`
    content: str  # `digest` of these files
    first_frame: str = ""  # number and checksum of the first pushed frame
    own_keywords: Mapping[str, Any] = field(default_factory=dict)
    topologies: Mapping[str, str] = field(default_factory=dict)
    sequence: int = 0
    seen: float = 0.0

    @classmethod
    def from_origin(
        cls, origin: Origin, keywords: Mapping[str, Any], known: "Sequence[OriginStamp]" = ()
    ) -> "OriginStamp":
        """Return the stamp of a reachable origin; read no content if a `known` stamp has the same sizes and times."""
        files = tuple(map(FileState.from_path, content_files(origin)))
        same = next((stamp for stamp in known if stamp.files == files), None)
        content = digest(files) if same is None else same.content
        return cls(
            paths=origin.paths,
            kinds=origin.kinds,
            keywords=frame_keywords(keywords),
            part_frames=tuple(file.n_frames for file in origin.files),
            n_frames=origin.n_frames,
            n_atoms=origin.n_atoms,
            fingerprint=origin.fingerprint,
            timestep=origin.timestep,
            has_velocities=origin.has_velocities,
            has_forces=origin.has_forces,
            files=files,
            content=content,
            own_keywords={**origin.files[0].keywords, **_json_values(keywords)},
            sequence=_next_sequence(content, known),
            seen=time.time(),
        )

    @property
    def is_pushed(self) -> bool:
        """Whether a simulation pushed the frames; then there is no origin."""
        return self.kinds == (PUSHED,)

    @classmethod
    def from_pushed_frames(
        cls, name: str, generation: bytes, n_frames: int, first: Sequence[RawFrame]
    ) -> "OriginStamp":
        """Return the stamp of frames that a simulation pushed, which have no origin."""
        frame, last_frame = first[0], first[-1]
        n_between = last_frame.number - frame.number
        checksum = crc32c(memoryview(frame.positions).cast("B"))
        return cls(
            paths=(name,),
            kinds=(PUSHED,),
            keywords=frame_keywords({}),
            part_frames=(n_frames,),
            n_frames=n_frames,
            n_atoms=len(frame.positions),
            fingerprint=hashlib.sha256(b"\0".join([name.encode(), generation])).hexdigest(),
            timestep=(last_frame.time - frame.time) / n_between if n_between else None,
            has_velocities=frame.velocities is not None,
            has_forces=frame.forces is not None,
            files=(),
            content=f"pushed {generation.hex()}",
            first_frame=f"frame {frame.number:020d} {checksum:08x}",  # the lowest frame number sorts first
        )

    @classmethod
    def parse(cls, content: bytes | None) -> "OriginStamp | None":
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
        """Digest that distinguishes contents of the same name."""
        parts = [VERSION, self.keywords, self.n_atoms, self.content, *self._sizes]
        return hashlib.sha256(json.dumps(parts).encode()).digest()

    def compare(self, now: "OriginStamp") -> Comparison:
        """Compare the frames at this stamp with those of the origin `now`."""
        if (self.keywords, self.n_atoms, len(self.files)) != (now.keywords, now.n_atoms, len(now.files)):
            return "changed"
        if self.files == now.files or (self._sizes == now._sizes and self.content == now.content):
            return "same"
        # Only the last file may have grown: frames are numbered across files.
        *others, last = zip(self.files, now.files, strict=True)
        grown = all(old.size == new.size for old, new in others) and last[0].size < last[1].size
        numbered = self.part_frames[:-1] == now.part_frames[:-1] and self.n_frames <= now.n_frames
        if not grown or not numbered or len(self.part_frames) != len(now.part_frames):
            return "changed"
        earlier_states = [FileState(new.path, old.size) for old, new in zip(self.files, now.files, strict=True)]
        return "grown" if digest(earlier_states) == self.content else "changed"

    @property
    def _sizes(self) -> list[int]:
        return [file.size for file in self.files]


def frame_keywords(keywords: Mapping[str, Any]) -> str:
    """Return the MDAnalysis keywords that affect frames (dt, format, ...) as JSON."""
    ours = {name: value for name, value in keywords.items() if name not in TOPOLOGY_KEYWORDS}
    return json.dumps(ours, sort_keys=True, default=repr)


def _json_values(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords whose values JSON can store; others, such as a guesser, apply to one call only."""
    plain = {}
    for name, value in keywords.items():
        with contextlib.suppress(TypeError, ValueError):
            plain[name] = json.loads(json.dumps(value))
    return plain


def _next_sequence(content: str, known_stamps: Sequence[OriginStamp]) -> int:
    """Return the sequence number of an origin's present content, given its known earlier contents."""
    last = max((stamp.sequence for stamp in known_stamps), default=0)
    others = any(stamp.sequence == last and stamp.content != content for stamp in known_stamps)
    return last + 1 if others else max(1, last)


def latest(stamps: Sequence[OriginStamp]) -> OriginStamp:
    """Return the latest of several stamps of an unreachable origin."""
    last = max(stamp.sequence for stamp in stamps)
    newest = [stamp for stamp in stamps if stamp.sequence == last]
    best = max(newest, key=lambda stamp: stamp.n_frames)
    if best.files and any(stamp.content != best.content for stamp in newest):
        raise UsageError(
            f"{best.paths[0]} is away, and caches have frames of several contents that it had, none of which is known "
            "to be the last; make it readable, or evict it from the caches that are behind: himach cache evict DATASET"
        )
    return best


def digest(files: Sequence[FileState]) -> str:
    """Return the SHA-256 (hex) of blocks spread over files up to the given sizes, without frame counts in headers."""
    present = [file for file in files if file.size > 0]
    total = sum(file.size for file in present)
    share = max(2, DIGEST_BYTES // max(1, len(present)))
    result = hashlib.sha256()
    for path, size, *state in present:
        if is_url(path):  # the server's metadata replaces the content
            result.update(f"{size} {state}".encode())
            continue
        with open(path, "rb", buffering=0) as file:
            for offset, length in _spread_blocks(size, size if total <= DIGEST_BYTES else share):
                block = os.pread(file.fileno(), length, offset)
                result.update(block if offset else _blank_counts(block))
    return result.hexdigest()


def _blank_counts(head: bytes) -> bytes:
    """Return a file's first bytes with the number of frames (and last step) blanked, which some formats keep there."""
    if head[4:8] == b"CORD":  # DCD
        return head[:8] + bytes(4) + head[12:20] + bytes(4) + head[24:]
    if head[:3] == b"CDF":  # NetCDF; its fifth version has longer numbers
        width = 8 if head[3:4] == b"\5" else 4
        return head[:4] + bytes(width) + head[4 + width :]
    return head


def _spread_blocks(size: int, share: int) -> list[tuple[int, int]]:
    """Return offset and length of blocks spread evenly over a file, including its first and last bytes."""
    if size <= share:
        return [(offset, min(1 << 20, size - offset)) for offset in range(0, size, 1 << 20)]
    length = min(BLOCK_BYTES, share // 2)
    count = share // length
    return [(index * (size - length) // (count - 1), length) for index in range(count)]


#: Pauses in seconds before another check on a node whose view of a file differs from the first rank's.
PAUSES = (0.2, 1.0)
OPENINGS = 3  # attempts to open files that change meanwhile

T = TypeVar("T")


class OriginChangedError(TrajectoryError):
    """The origin has changed since the run began, or differs between nodes."""


def open_unchanged(paths: Sequence[str | os.PathLike[str]], open_files: Callable[[], T]) -> T:
    """Call `open_files`, again if the trajectory files changed meanwhile other than by growth; return its result."""
    names = [*map(absolute, paths)]
    for _ in range(OPENINGS):
        before = [FileState.from_path(path) for path in names]
        try:
            result = retry(open_files)
        except OSError as error:
            raise TrajectoryError(f"{error.filename or names[0]} cannot be read: {error.strerror or error}") from error
        changes = [(old, FileState.from_path(old.path)) for old in before]
        changed = [old.path for old, new in changes if old != new and new.size <= old.size]
        if not changed:
            return result
    raise OriginChangedError(
        f"{changed[0]} changes while it is opened; run again when nothing writes to it any more, other than at its end"
    )


class OriginWatch:
    """Compares this rank's view of the origin's files with the stamp of the first rank."""

    def __init__(self, stamp: OriginStamp, origin: Origin, rank_name: str, leads: bool = True) -> None:
        self._content = stamp.content
        self._origin = origin
        self._rank_name = rank_name
        self._noted_files = {file.path: file for file in stamp.files}
        self._equal_states = dict(self._noted_files)  # states with the noted content
        stamps = [path for file in origin.files for path in file.stamps]
        self._paths = tuple(path for path in self._noted_files if leads or path in stamps)

    def check_at_start(self) -> None:
        """Compare the existing files before the first frame is read; reading reports missing files."""
        present = [path for path in self._paths if FileState.from_path(path).size >= 0]
        for pause in (0.0, *PAUSES):
            time.sleep(pause)  # a network file system caches attributes for seconds, or a copy is in progress
            difference = self._find_difference(present)
            if not difference:
                return
        raise OriginChangedError(
            f"{difference} on {self._rank_name}, unlike on rank 0: all ranks must see the same trajectory; mount "
            "the same file system on all nodes, or copy the file to each of them again"
        )

    def check(self) -> None:
        """Compare all files."""
        difference = self._find_difference(self._paths)
        if difference:
            raise OriginChangedError(
                f"{difference}: the trajectory has changed since this run opened it (found on {self._rank_name}); "
                "frames of two contents would be mixed, so nothing that was read is used or kept; run again when "
                "nothing writes to the file any more, other than at its end"
            )

    def reading(self, frames: Iterator[RawFrame]) -> Iterator[RawFrame]:
        """Yield frames; if one cannot be read, a change of the origin is the better explanation."""
        try:
            yield from frames
        except TrajectoryError:
            self.check()
            raise

    def holds(self, numbers: Sequence[int]) -> bool:
        """Tell whether the files of these frames are unchanged."""
        return not self._find_difference(self._origin.frame_files(numbers) & self._noted_files.keys())

    def changed(self, number: int) -> bool:
        """Tell whether a frame's file changed since `check`, other than by growth; open files of directories only."""
        path, _ = self._origin.locate(number)
        noted = self._noted_files.get(path)
        if noted is None:  # a frame directory
            return not self.holds([number])
        now = FileState.from_path(path)
        return now.size <= noted.size and now != self._equal_states[path]

    def _find_difference(self, paths: Iterable[str]) -> str:
        """Return which file differs and how; empty if none does."""
        try:
            return retry(partial(self._compare, tuple(paths)))
        except OSError as error:
            return f"{error.filename or self._origin.paths[0]} cannot be read ({error.strerror or error})"

    def _compare(self, paths: Sequence[str]) -> str:
        now = [FileState.from_path(path, fresh=True) for path in paths]
        new = [file for file in now if file != self._equal_states[file.path]]
        for file in new:
            if file.size < (size := self._noted_files[file.path].size):
                return f"{file.path} {_describe_loss(file.size, size)}"
        if new and digest([*self._noted_files.values()]) != self._content:
            several = f"one of the {len(self._noted_files)} files of {self._origin.paths[0]}"
            return f"{new[0].path if len(self._noted_files) == 1 else several} has other content"
        self._equal_states.update({file.path: file for file in new})
        return ""


def _describe_loss(size: int, noted: int) -> str:
    return "is not there any more" if size < 0 else f"has {size} bytes and had {noted}"
