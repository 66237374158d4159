"""The files of an origin as they are: `content_files()` lists them, `FileState` tells sizes and times.

Equal states of a file tell that it has not changed; where they differ its content decides: `digest()`, `sketch()`.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from himach.io.remote.byte_file import status_of
from himach.io.remote.errors import RemoteError
from himach.io.remote.url import is_url
from himach.io.trajectory.frame_directory import FrameDirectory
from himach.io.trajectory.h5md.zarr_directory import ZarrDirectory
from himach.io.trajectory.manifest import TIMES
from himach.io.trajectory.origin import Origin

#: Content that a digest covers: whole files where they have no more than this together, else blocks all over them.
DIGEST_BYTES = 64 << 20
#: The same for a sketch, which is made again and again.
SKETCH_BYTES = 2 << 20
BLOCK_BYTES = 1 << 16
#: Files of a directory that are looked at; where there are more, as many all over it.
MAX_FILES = 4096


class FileState(NamedTuple):
    """A file as it is found.

    Attributes
    ----------
    path
        Of the file.
    size
        Bytes in it; -1 if it is not there.
    modified, changed
        When its content and its inode changed last, nanoseconds by the clock of its file system. Tools that copy set
        the former as they like, but not the latter.
    """

    path: str
    size: int
    modified: int = 0
    changed: int = 0

    @classmethod
    def of(cls, path: str, fresh: bool = False) -> FileState:
        """Look at a file; if `fresh`, as opening it shows it, for which a network file system asks its server.

        Raises
        ------
        OSError
            The file system fails. That the file is not there, or may not be read, is no failure.
        """
        try:
            if is_url(path):
                return cls(path, *status_of(path))
            if not fresh:
                status = os.stat(path)
            else:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    status = os.fstat(descriptor)
                finally:
                    os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return cls(path, -1)
        except RemoteError as error:
            if error.errno in (errno.ENOENT, errno.EACCES):
                return cls(path, -1)
            raise
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def content_files(origin: Origin) -> list[str]:
    """Return the files whose content tells the origin from another."""
    found: list[str] = []
    for file, _ in origin.files():
        found += file.stamps
        if isinstance(file, FrameDirectory | ZarrDirectory):
            found += file.content(MAX_FILES)
    return list(dict.fromkeys(found))


def lasting_files(origin: Origin) -> list[str]:
    """Return those of the `content_files` of which what is there stays when frames are added.

    Manifest and times of a frame directory are written anew then.
    """
    anew = {
        os.path.join(file.path, name)
        for file, _ in origin.files()
        if isinstance(file, FrameDirectory)
        for name in (TIMES, os.path.basename(file.stamps[0]))
    }
    return [path for path in content_files(origin) if path not in anew]


def files_of_frames(origin: Origin, numbers: Sequence[int]) -> set[str]:
    """Return the files that these frames of an origin lie in."""
    files = origin.files()
    wanted = np.asarray(numbers, dtype=np.int64)
    starts = np.cumsum([0] + [n_frames for _, n_frames in files])
    of_file = np.searchsorted(starts, wanted, side="right") - 1
    found: set[str] = set()
    for index in np.unique(of_file).tolist():
        file, _ = files[index]
        if isinstance(file, FrameDirectory | ZarrDirectory):
            found |= file.files_of(wanted[of_file == index] - starts[index])
        else:
            found.add(file.path)
    return found


def digest(files: Sequence[FileState], budget: int | None = None) -> str:
    """Return the SHA-256 (hex) over the first so many bytes of files: all of them, or blocks all over them if many.

    Parameters
    ----------
    files
        Of each its path and size count; where it is shorter than that the digest is another.
    budget
        Bytes that are read at most, or little more; None: `DIGEST_BYTES`. Counts of frames do not count: they change
        when frames are added.
    """
    there = [file for file in files if file.size > 0]
    total = sum(file.size for file in there)
    budget = DIGEST_BYTES if budget is None else budget
    share = max(2, budget // max(1, len(there)))
    result = hashlib.sha256()
    for path, size, *state in there:
        if is_url(path):  # what its server says of it stands for its content
            result.update(f"{size} {state}".encode())
            continue
        with open(path, "rb", buffering=0) as file:
            for place, length in _blocks(size, size if total <= budget else share):
                block = os.pread(file.fileno(), length, place)
                result.update(block if place else _without_counts(block))
    return result.hexdigest()


def sketch(files: Sequence[FileState]) -> str:
    """Return a digest of less."""
    return digest(files, SKETCH_BYTES)


def _without_counts(head: bytes) -> bytes:
    """Return a file's first bytes without the number of its frames (and last step), which some formats keep there."""
    if head[4:8] == b"CORD":  # DCD
        return head[:8] + bytes(4) + head[12:20] + bytes(4) + head[24:]
    if head[:3] == b"CDF":  # NetCDF, whose fifth version has longer numbers
        width = 8 if head[3:4] == b"\5" else 4
        return head[:4] + bytes(width) + head[4 + width :]
    return head


def _blocks(size: int, share: int) -> list[tuple[int, int]]:
    """Return place and length of blocks that are spread evenly over a file, its first and last bytes among them."""
    if size <= share:
        return [(place, min(1 << 20, size - place)) for place in range(0, size, 1 << 20)]
    length = min(BLOCK_BYTES, share // 2)
    count = share // length
    return [(index * (size - length) // (count - 1), length) for index in range(count)]
