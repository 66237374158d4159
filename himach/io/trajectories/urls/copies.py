"""Folders for a node's copies of remote files: `make_folder()`, `copies_in()` a store, `forget()` one.

A run with a cache keeps copies in its store, where they take at most half of the quota. Copies that do not fit there,
and those of a run without a cache, go to ``himach-remote-<uid>`` in ``$SLURM_TMPDIR``, ``$TMPDIR`` or ``/var/tmp``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from himach.errors import UsageError
from himach.io.trajectories.urls.transport import RemoteState

MARKS = "blocks.here"  # a byte for each block of a copy, 1 if it is there; its readers hold a shared lock on it
HEAD = struct.Struct("q4088s")  # header of MARKS: time of the copy's last change (0 while it is read), name
SMALL_BYTES = 64 << 20  # larger copies are removed after their last reader
PRUNE_SECONDS = 60.0  # between checks of all copies
UNUSED_SECONDS = 7 * 24 * 3600.0  # after which a copy is removed

_store: tuple[Path, int] | None = None  # this process's folder for copies, and the bytes they may take there
_pruned = -PRUNE_SECONDS  # time of this process's last check


class Copy(NamedTuple):
    """A copy: its folder, the file's name, its bytes on disk, and the time of its last opening (s since 1970)."""

    folder: Path
    name: str
    nbytes: int
    last_used: int


def keep_in(store: Path | None, quota: int = 0) -> None:
    """Keep this process's copies in a store of `quota` bytes; None: in a folder for temporary files."""
    global _store
    _store = None if store is None else (store, quota // 2)


def head(name: str, changed: int = 0) -> bytes:
    """Return the header of `MARKS`."""
    return HEAD.pack(changed, name.encode(errors="surrogateescape")[: HEAD.size - 8])


def copies_in(root: Path) -> list[Copy]:
    """Return the copies in a store or another folder, the least recently used first."""
    copies: list[tuple[int, Copy]] = []
    for marks in root.glob(f"*/{MARKS}"):
        with contextlib.suppress(OSError), marks.open("rb") as file:
            name = HEAD.unpack(file.read(HEAD.size).ljust(HEAD.size, b"\0"))[1].rstrip(b"\0")
            nbytes = sum(path.lstat().st_blocks * 512 for path in marks.parent.iterdir())
            used = marks.parent.stat().st_mtime_ns
            copies.append((used, Copy(marks.parent, name.decode(errors="replace"), nbytes, used // 10**9)))
    return [copy for _, copy in sorted(copies)]


def evict(folder: Path) -> bool:
    """Remove a copy unless it is open; return whether it is gone."""
    with contextlib.suppress(OSError), open(folder / MARKS, "rb") as marks:
        fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
        forget(folder)
    return not (folder / MARKS).exists()


def forget(folder: str | os.PathLike[str]) -> None:
    """Remove a copy; the caller has locked it."""
    shutil.rmtree(folder, ignore_errors=True)


def make_folder(name: str, state: RemoteState) -> Path:
    """Make and return the folder for a copy of a file; each content has its own.

    Each boot of the machine has its own, too: the disk may lack writes from before a restart.
    """
    digest = hashlib.sha256("\0".join(["3", name, *map(str, state), _boot()]).encode()).hexdigest()
    room = sys.maxsize
    try:
        if _store is not None and state.size <= _store[1]:
            root, room = _store
        else:
            root = _temporary()
        folder = root / f"{digest[:16]}-{digest[16:32]}"  # the library counts files in folders of such names
        if not folder.exists():
            _make_room(root, room - state.size, state.size > SMALL_BYTES)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"files elsewhere are read by way of {error.filename}, which cannot be used: {error.strerror}; name a "
            "local folder by $TMPDIR"
        ) from None
    return folder


def _make_room(root: Path, room: int, at_once: bool) -> None:
    """Remove copies unused for long, and others while all take too much; open ones stay."""
    global _pruned
    if time.monotonic() < _pruned + PRUNE_SECONDS and not at_once:
        return
    _pruned = time.monotonic()
    copies = copies_in(root)
    used_bytes = sum(copy.nbytes for copy in copies)
    for copy in copies:
        if (used_bytes > room or time.time() - copy.last_used > UNUSED_SECONDS) and evict(copy.folder):
            used_bytes -= copy.nbytes


def _temporary() -> Path:
    base = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/var/tmp"
    root = Path(base, f"himach-remote-{os.geteuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write there, or it is not yours", str(root))
    return root


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
