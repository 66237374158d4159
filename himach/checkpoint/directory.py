"""A directory of kept pairs: for each analysis the generations of its map, each with the parts that runs wrote."""

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
#: Prefix of the names that NFS gives to files removed while open.
NFS_PREFIX = ".nfs"
MAP = "map.json"
PART = ".pairs"
OPENED = ".opened"
TEMPORARY = ".tmp"
#: Format version of map.json.
VERSION = 3
OTHERS_WRITE = 0o022


@dataclass(frozen=True)
class FingerprintVersion:
    """The parts of one map: a generation."""

    path: Path  # its folder, which may not exist yet
    number: int  # 1, 2, ...
    key: str  # identity recorded in its parts, hex
    fingerprint: MapFingerprint | None  # of the map at its last use; None if unreadable
    damage: str = ""  # why it is unreadable, if there are parts; for messages

    def write(self) -> None:
        """Create the folder and write map.json."""
        assert self.fingerprint is not None
        for folder in (self.path.parent.parent, self.path.parent, self.path):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        described = {"version": VERSION, "key": self.key, "map": self.fingerprint.to_json()}
        described["digest"] = _digest(described)
        write_bytes(self.path / MAP, json.dumps(described, indent=1).encode())

    def note(self, files: Mapping[str, str]) -> None:
        """Record the opened files, as digests by path, next to the records of other ranks."""
        text = json.dumps(dict(files), sort_keys=True).encode()
        path = self.path / f"{hashlib.sha256(text).hexdigest()[:16]}{OPENED}"
        if files and not path.exists():
            write_bytes(path, text)

    def changed_files(self, files: Mapping[str, str]) -> list[str]:
        """Return the differences between the files opened for its parts and `files`, which are opened now."""
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
        """Whether only this user can have written its contents."""
        return all(map(is_private, (self.path, self.path.parent)))

    def parts(self) -> list[Path]:
        """Return the files of its parts, sorted by name."""
        return sorted(self.path.glob(f"*{PART}"))


class PairsDirectory:
    """A directory in which runs keep pairs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None

    def claim(self, members: bool = False, private: bool = False) -> None:
        """Create the directory, lock it against other runs, and delete temporary files of killed runs.

        If it must be `private`, raise UsageError where others can write.
        """
        try:
            if not self.path.exists():
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if private and not is_private(self.path.resolve()):  # not even now, where a file system has no permissions
                raise UsageError(
                    f"pairs {self.path}: others can write there, and kept pairs are pickles, which can run any code; "
                    f"chmod go-w {self.path}, or name another directory, on a file system with permissions"
                )
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
        """Unlock the directory."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.remove()
            self._lock.release()
            self._lock = None

    def labels(self) -> list[str]:
        """Return the names of the analyses with pairs here."""
        folders = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(path.name for path in folders if any(map(os.listdir, _numbered(path))))

    def generations(self, label: str) -> list[FingerprintVersion]:
        """Return the generations of an analysis, the oldest first."""
        return [_read(path) for path in sorted(_numbered(self.path / label), key=lambda path: int(path.name))]

    def begin(self, label: str, fingerprint: MapFingerprint) -> FingerprintVersion:
        """Return a new generation; write nothing yet."""
        versions = (self.path / label).iterdir() if (self.path / label).is_dir() else ()
        last = max((int(path.name) for path in versions if path.name.isdecimal()), default=0)
        return FingerprintVersion(self.path / label / str(last + 1), last + 1, secrets.token_hex(16), fingerprint)

    def _check(self) -> None:
        own = (LOCK, NFS_PREFIX)
        other = [path for path in self.path.iterdir() if not path.name.startswith(own) and not any(_numbered(path))]
        foreign = [path for path in other if not path.is_dir() or any(path.iterdir())]
        if foreign:
            raise UsageError(
                f"pairs {self.path} is neither empty nor a directory of kept pairs ({foreign[0].name} is in it); name "
                "another directory"
            )


def is_private(path: Path) -> bool:
    """Return whether a file or directory is missing, or is owned and writeable by this user alone."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return is_own(status)


def is_own(status: os.stat_result) -> bool:
    """Return whether this is the status of what this user alone owns and can write to."""
    return status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE and not stat.S_ISLNK(status.st_mode)


def _numbered(folder: Path) -> Iterator[Path]:
    """Yield the generations in an analysis's folder; a folder with foreign files is none, whatever its name."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.isdecimal() and path.is_dir() and all(_is_ours(inside) for inside in os.listdir(path)):
                yield path


def _is_ours(name: str) -> bool:
    """Return whether a file may be of a run; on NFS, deleted files remain under hidden names."""
    return name == MAP or name.endswith((PART, OPENED, TEMPORARY)) or name.startswith(NFS_PREFIX)


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
