"""A directory of kept pairs: for each analysis the generations of its map, and in each the parts that runs left.

One run at a time works in it (`claim()`). A generation belongs to one map, which its ``map.json`` describes; parts are
written under names of their own and are never changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from himach.checkpoint.map_fingerprint import MapFingerprint
from himach.errors import UsageError
from himach.files import content_digest, write_bytes
from himach.locks import HeldError, Lock

LOCK = ".lock"
#: What names begin with that NFS gives to files which were removed while they were open.
NFS_PREFIX = ".nfs"
MAP = "map.json"
PART = ".pairs"
OPENED = ".opened"
TEMPORARY = ".tmp"
#: Of map.json.
VERSION = 1
OTHERS_WRITE = 0o022


@dataclass(frozen=True)
class FingerprintVersion:
    """Parts of one map."""

    path: Path  # its folder, which may not be there yet
    number: int  # 1, 2,
    key: str  # what its parts say that they belong to, hex
    fingerprint: MapFingerprint | None  # what made up the map when it was last used; None if that cannot be read
    damage: str = ""  # why it cannot be, if there are parts; for people

    def write(self) -> None:
        """Make the folder, and describe the map in it."""
        assert self.fingerprint is not None
        for folder in (self.path.parent.parent, self.path.parent, self.path):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        described = {"version": VERSION, "key": self.key, "map": self.fingerprint.to_json()}
        described["digest"] = _digest(described)
        write_bytes(self.path / MAP, json.dumps(described, indent=1).encode())

    def note(self, files: Mapping[str, str]) -> None:
        """Write down, beside what other ranks wrote, which files were opened: their digests by path."""
        text = json.dumps(dict(files), sort_keys=True).encode()
        path = self.path / f"{hashlib.sha256(text).hexdigest()[:16]}{OPENED}"
        if files and not path.exists():
            write_bytes(path, text)

    def changed_files(self, files: Mapping[str, str]) -> list[str]:
        """Return what is different in files that were opened for its parts, and in `files` that are opened now."""
        opened: dict[str, str] = {}
        for path in sorted(self.path.glob(f"*{OPENED}")):
            try:
                listed = dict(json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError, RecursionError):
                return [f"{path.name}, the list of files that were opened, is damaged"]
            opened |= {file: digest if opened.get(file, digest) == digest else "" for file, digest in listed.items()}
        changed = [file for file, digest in opened.items() if content_digest(file) != digest]
        new = [file for file in files if file not in opened and any(self.parts())]
        return [f"{file}, which was opened, has another content" for file in changed] + [
            f"{file} is opened, and was not" for file in new
        ]

    @property
    def private(self) -> bool:
        """Whether nobody but this user can have written what is in it."""
        return all(map(is_private, (self.path, *self.path.parents[:2])))

    def parts(self) -> list[Path]:
        """Return the files of its parts, by name."""
        return sorted(self.path.glob(f"*{PART}"))


class PairsDirectory:
    """A directory in which runs keep pairs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None

    def claim(self, members: bool = False) -> None:
        """Make the directory, hold it against other runs, and sweep what killed ones left."""
        try:
            if not self.path.exists():
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not members:
                self._check()
            self._lock = Lock(self.path / LOCK)
        except HeldError as error:
            raise UsageError(
                f"pairs {self.path}: another run keeps its pairs there ({error}); wait for its end, or name another "
                "directory"
            ) from None
        except (FileExistsError, NotADirectoryError):
            file = next((path for path in (self.path, *self.path.parents) if path.is_file()), self.path)
            raise UsageError(f"pairs {self.path}: {file} is a file; name another directory") from None
        except OSError as error:
            raise UsageError(
                f"pairs {self.path} cannot be written ({error.strerror}); name another directory"
            ) from None
        for temporary in self.path.glob(f"*/*/.*{TEMPORARY}"):
            with contextlib.suppress(OSError):
                temporary.unlink()

    def release(self) -> None:
        """Let other runs have it."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.remove()
            self._lock.release()
            self._lock = None

    def labels(self) -> list[str]:
        """Return the names of the analyses whose pairs are here."""
        return sorted(path.name for path in self.path.iterdir() if any(map(os.listdir, _numbered(path))))

    def generations(self, label: str) -> list[FingerprintVersion]:
        """Return the generations of an analysis, the oldest first."""
        return [_read(path) for path in sorted(_numbered(self.path / label), key=lambda path: int(path.name))]

    def begin(self, label: str, fingerprint: MapFingerprint) -> FingerprintVersion:
        """Return a new generation, of which nothing is written yet."""
        versions = (self.path / label).iterdir() if (self.path / label).is_dir() else ()
        last = max((int(path.name) for path in versions if path.name.isdecimal()), default=0)
        return FingerprintVersion(self.path / label / str(last + 1), last + 1, secrets.token_hex(16), fingerprint)

    def evict(self, label: str, number: int) -> None:
        """Delete a generation, and the analysis's folder with the last."""
        folder = self.path / label / str(number)
        with contextlib.suppress(FileNotFoundError):
            (folder / MAP).unlink()  # first, so that what is left of it is nothing to use
        for path in folder.iterdir():
            if _is_ours(path.name):
                path.unlink()
        folder.rmdir()
        with contextlib.suppress(OSError):
            folder.parent.rmdir()

    def _check(self) -> None:
        """Raise UsageError if there are other things in the directory."""
        own = (LOCK, NFS_PREFIX)
        other = [path for path in self.path.iterdir() if not path.name.startswith(own) and not any(_numbered(path))]
        foreign = [path for path in other if not path.is_dir() or any(path.iterdir())]
        if foreign:
            raise UsageError(
                f"pairs {self.path} is neither empty nor a directory of kept pairs ({foreign[0].name} is in it); name "
                "another directory"
            )


def is_private(path: Path) -> bool:
    """Tell whether a directory, or a file, is this user's and nobody else may write to it, or is not there yet."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE and not stat.S_ISLNK(status.st_mode)


def _numbered(folder: Path) -> Iterator[Path]:
    """Give the generations in an analysis's folder; what holds other files is none, whatever its name."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.isdecimal() and path.is_dir() and all(_is_ours(inside) for inside in os.listdir(path)):
                yield path


def _is_ours(name: str) -> bool:
    """Tell whether a file in a generation's folder may be one that a run left; on some disks, what is deleted hides."""
    return name == MAP or name.endswith((PART, OPENED, TEMPORARY)) or name.startswith(".nfs")


def _read(path: Path) -> FingerprintVersion:
    number = int(path.name)
    try:
        described: dict[str, Any] = json.loads((path / MAP).read_bytes())
        if described.pop("digest") != _digest(described):
            raise ValueError
        if described["version"] == VERSION:
            return FingerprintVersion(path, number, str(described["key"]), MapFingerprint.from_json(described["map"]))
        damage = f"is of version {described['version']}, and this himach has {VERSION}"
    except OSError as error:
        damage = f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        damage = "is damaged"
    has_parts = any(path.glob(f"*{PART}"))
    return FingerprintVersion(
        path, number, "", None, f"{path / MAP} {damage}, so what is kept there is not used" * has_parts
    )


def _digest(described: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Place:
    """Where the pairs of one analysis go."""

    generation: FingerprintVersion  # made at the first commit
    combined: bool  # whether they are combine()'s
    pickles: bool  # whether values may be kept as pickles: only where nobody but this user can write
    home: str  # the module of the analysis
