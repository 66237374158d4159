"""The file of a bundle: `write_archive()` makes a zip, equal bytes for equal content; `extract()` reads it.

A bundle is untrusted. Files are extracted below a new folder, whatever their names; each must then be one that the
metadata name, with its checksum.
"""

import hashlib
import json
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from himach.errors import HimachError, UsageError
from himach.files import content_digest, whole_file

METADATA = "ro-crate-metadata.json"
#: Time of the members of a zip: the earliest possible.
TIME = (1980, 1, 1, 0, 0, 0)
PERMISSIONS = 0o644
MOST_METADATA = 1 << 26  # bytes
#: Errors of zipfile for an archive that it cannot read.
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


class DamagedError(HimachError):
    """A bundle that is not as it was written."""


@dataclass(frozen=True)
class Payload:
    """A file in a bundle: content or source file, SHA-256 (hex), and size in bytes."""

    source: bytes | Path
    digest: str
    size: int

    @classmethod
    def from_source(cls, source: bytes | Path) -> "Payload":
        """Make a member of content or a file; raises UsageError if the file cannot be read."""
        if isinstance(source, bytes):
            return cls(source, hashlib.sha256(source).hexdigest(), len(source))
        try:
            with source.open("rb") as file:
                return cls(source, hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise UsageError(f"{source} cannot be read ({error.strerror})") from None


def write_archive(path: str | os.PathLike[str], members: Mapping[str, Payload]) -> None:
    """Write members by name into a zip, whole or not at all; raises HimachError if it fails or a file has changed."""
    try:
        with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, member in sorted(members.items()):
                info = zipfile.ZipInfo(name, TIME)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.create_system = 3  # Unix permissions
                info.external_attr = (stat.S_IFREG | PERMISSIONS) << 16
                info.file_size = member.size
                if isinstance(member.source, bytes):
                    archive.writestr(info, member.source)
                    continue
                with member.source.open("rb") as source, archive.open(info, "w") as target:
                    shutil.copyfileobj(source, target)
                if Payload.from_source(member.source) != member:
                    raise HimachError(f"{member.source} has changed while it was bundled; bundle again when it rests")
    except OSError as error:
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None


def extract(bundle: Path, folder: Path) -> dict[str, int]:
    """Extract a bundle into an empty folder; return the sizes of its files by name, without the metadata."""
    with _open_archive(bundle) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        needed, free = sum(sizes.values()), shutil.disk_usage(folder).free
        if METADATA not in sizes:
            raise UsageError(f"{bundle} is no bundle: there is no {METADATA} in it; himach bundle writes one")
        if sizes[METADATA] > MOST_METADATA:
            raise _damaged(bundle, f"{METADATA} is larger than any bundle's ({sizes[METADATA]:,} bytes)")
        if needed > free:
            raise UsageError(
                f"{bundle} holds {needed:,} bytes, and {folder} has room for {free:,}; name another place: $TMPDIR"
            )
        name = METADATA
        try:
            graph = json.loads(archive.read(METADATA))["@graph"]
            files = {unquote(entity["@id"]): entity["sha256"] for entity in graph if entity["@type"] == "File"}
            for name in sizes:
                archive.extract(name, folder)
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError):
            raise _damaged(bundle, f"{METADATA} describes no RO-Crate") from None
        except BROKEN as error:
            raise _damaged(bundle, f"{name!r}: {error}") from None
    extracted = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(files.keys() | extracted.keys() - {METADATA}):
        if name not in extracted:
            raise _damaged(bundle, f"{name!r} is not there")
        if name not in files:
            raise _damaged(bundle, f"{METADATA} does not name {name!r}")
        if content_digest(str(extracted[name])) != files[name]:
            raise _damaged(bundle, f"{name!r}: its content is not what was bundled")
    return {name: extracted[name].stat().st_size for name in sorted(files)}


def _open_archive(bundle: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(bundle)
    except OSError as error:
        raise UsageError(f"the bundle {bundle} cannot be read ({error.strerror})") from None
    except BROKEN as error:
        if bundle.read_bytes()[:2] == b"PK":
            raise _damaged(bundle, f"it begins as a zip and does not end as one ({error})") from None
        raise UsageError(f"{bundle} is no bundle: it is no zip; himach bundle writes one") from None


def _damaged(bundle: Path, why: str) -> DamagedError:
    return DamagedError(f"{bundle} is damaged, or somebody changed it: {why}; get the bundle again")
