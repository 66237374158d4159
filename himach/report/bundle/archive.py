"""The file of a bundle: a zip of the same bytes for the same content, `write_archive()`; and its way back, `Archive`.

What is read is of unknown origin: names that lead elsewhere, links, what is larger than it may be and what its metadata
does not name are refused before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from himach.errors import HimachError, UsageError
from himach.files import whole_file

__all__ = ["METADATA", "Archive", "DamagedError", "Member", "write_archive"]

METADATA = "ro-crate-metadata.json"
#: What a zip says of the time of its members: there is no earlier one.
TIME = (1980, 1, 1, 0, 0, 0)
PERMISSIONS = 0o644
#: Members of a bundle and bytes of its metadata, at most.
MOST_MEMBERS, MOST_METADATA = 100_000, 1 << 26
#: Bytes that are read at once.
PIECE = 1 << 20
ENCRYPTED = 1  # a flag of a member


class DamagedError(HimachError):
    """A bundle that is not as it was written."""


@dataclass(frozen=True)
class Member:
    """A file in a bundle.

    Attributes
    ----------
    source
        Its content, or the file that has it.
    digest
        SHA-256 (hex).
    size
        Bytes.
    """

    source: bytes | Path
    digest: str
    size: int

    @classmethod
    def of(cls, source: bytes | Path) -> Member:
        """Return a member with what lies in a file, or with this content; raises UsageError if it cannot be read."""
        if isinstance(source, bytes):
            return cls(source, hashlib.sha256(source).hexdigest(), len(source))
        try:
            with source.open("rb") as file:
                return cls(source, hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise UsageError(f"{source} cannot be read ({error.strerror})") from None


def write_archive(path: str | os.PathLike[str], members: Mapping[str, Member]) -> None:
    """Write members into a zip, by name, whole or not at all.

    Raises
    ------
    HimachError
        If it cannot be written, or a file has changed since it was looked at.
    """
    try:
        with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name in sorted(members):
                _write(archive, name, members[name])
    except OSError as error:
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None


def _write(archive: zipfile.ZipFile, name: str, member: Member) -> None:
    info = zipfile.ZipInfo(name, TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # the permissions are those of Unix
    info.external_attr = (stat.S_IFREG | PERMISSIONS) << 16
    info.file_size = member.size
    if isinstance(member.source, bytes):
        archive.writestr(info, member.source)
        return
    digest = hashlib.sha256()
    with member.source.open("rb") as file, archive.open(info, "w") as target:
        while piece := file.read(PIECE):
            digest.update(piece)
            target.write(piece)
    if digest.hexdigest() != member.digest:
        raise HimachError(f"{member.source} has changed while it was bundled; bundle again when nothing writes there")


class Archive:
    """A bundle that is read; its names and sizes are checked, its content as it is extracted.

    Attributes
    ----------
    graph
        The entities of its metadata, by ``@id``.
    sizes
        Bytes of its members, by name.

    Raises
    ------
    UsageError
        If there is no such file, or it is no bundle.
    DamagedError
        If it is a zip that cannot be read, or holds what no bundle does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._zip = zipfile.ZipFile(self.path)
        except OSError as error:
            raise UsageError(f"the bundle {path} cannot be read ({error.strerror})") from None
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            if _begins_as_zip(self.path):
                raise DamagedError(f"{path} is damaged: it begins as a zip and does not end as one ({error})") from None
            raise UsageError(f"{path} is no bundle: it is no zip; himach bundle writes one") from None
        try:
            infos = self._zip.infolist()
            if len(infos) > MOST_MEMBERS:
                raise DamagedError(f"{path} has {len(infos):,} members, more than any bundle ({MOST_MEMBERS:,})")
            for info in infos:
                self._check(info)
            self.sizes = {info.filename: info.file_size for info in infos}
            self._check_names([info.filename for info in infos])
            self.graph = self._metadata()
            self._digests = self._told()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._zip.close()

    def extract(self, folder: Path) -> None:
        """Write all members into a folder that is empty, and check that each is as its checksums say.

        Raises
        ------
        DamagedError
            Of the first member that is not.
        UsageError
            If the disk has no room for them.
        """
        needed = sum(self.sizes.values())
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise UsageError(
                f"{self.path} holds {needed:,} bytes, and {folder} has room for {free:,}; name another place: $TMPDIR"
            )
        for name in sorted(self.sizes):
            place = folder / PurePosixPath(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            if self._copy(name, place) != self._digests.get(name):
                raise self._damaged(name, "its content is not what was bundled")

    def _copy(self, name: str, place: Path) -> str | None:
        """Write a member to its place; return its digest, but None of the metadata, which have no other checksum."""
        digest = hashlib.sha256()
        left = self.sizes[name]
        try:
            with self._zip.open(name) as member, place.open("xb") as file:
                while piece := member.read(PIECE):
                    left -= len(piece)
                    if left < 0:
                        raise self._damaged(name, "it is longer than it says")
                    digest.update(piece)
                    file.write(piece)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise self._damaged(name, str(error)) from None
        if left:
            raise self._damaged(name, "it is shorter than it says")
        return None if name == METADATA else digest.hexdigest()

    def _check(self, info: zipfile.ZipInfo) -> None:
        name, kind = info.filename, stat.S_IFMT(info.external_attr >> 16)
        parts = name.split("/")
        if not name or "\\" in name or "\0" in info.orig_filename or any(part in ("", ".", "..") for part in parts):
            raise self._damaged(name, "that is no name within a bundle, and might lead elsewhere")
        if ":" in parts[0] or any(ord(letter) < 32 for letter in name):
            raise self._damaged(name, "that is no name within a bundle, and might lead elsewhere")
        if kind not in (0, stat.S_IFREG) or info.is_dir():
            raise self._damaged(name, "it is a link or another thing that is no file")
        if info.flag_bits & ENCRYPTED:
            raise self._damaged(name, "it is encrypted, as nothing in a bundle is")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._damaged(name, "it is compressed as nothing in a bundle is")

    def _check_names(self, names: list[str]) -> None:
        if len(names) > len(self.sizes):
            twice = next(name for name in names if names.count(name) > 1)
            raise self._damaged(twice, "it is there twice")
        folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
        if both := sorted(folders & self.sizes.keys()):
            raise self._damaged(both[0], "it is a file and a folder")

    def _metadata(self) -> dict[str, dict[str, Any]]:
        """Return the entities of the metadata, by ``@id``."""
        if METADATA not in self.sizes:
            raise UsageError(f"{self.path} is no bundle: there is no {METADATA} in it; himach bundle writes one")
        if self.sizes[METADATA] > MOST_METADATA:
            raise self._damaged(METADATA, f"it is larger than any bundle's ({self.sizes[METADATA]:,} bytes)")
        try:
            with self._zip.open(METADATA) as file:
                said = json.loads(file.read(MOST_METADATA))
            return {str(entity["@id"]): entity for entity in said["@graph"]}
        except (ValueError, RecursionError, KeyError, TypeError):
            raise self._damaged(METADATA, "it describes no RO-Crate") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise self._damaged(METADATA, str(error)) from None

    def _told(self) -> dict[str, str]:
        """Return the digests that the metadata tell, by member, all of which are there."""
        told = {
            unquote(name): str(entity.get("sha256"))
            for name, entity in self.graph.items()
            if entity.get("@type") == "File"
        }
        for name in sorted({*told, *self.sizes} - {METADATA}):
            if name not in self.sizes:
                raise self._damaged(name, "it is not there")
            if name not in told:
                raise self._damaged(name, f"{METADATA} does not name it")
        return told

    def _damaged(self, name: str, why: str) -> DamagedError:
        return DamagedError(f"{self.path} is damaged, or somebody changed it: {name!r}: {why}; get the bundle again")


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"
