"""Where a node keeps copies of files elsewhere: `make_folder()` one, `copies_in()` a store, `forget()` one.

A run with a cache keeps them in its store, half of whose quota they take at most. What does not fit there, and what a
run without a cache brings, lies in ``himach-remote-<uid>`` in ``$SLURM_TMPDIR``, else ``$TMPDIR``, else ``/var/tmp``.
"""

from __future__ import annotations

import contextlib
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
from himach.io.remote.transport import RemoteState

MARKS = "blocks.here"  # which of a file's blocks are there; who has the file open has a shared lock on it
HEAD = struct.Struct("q4088s")  # before them: when the file was changed last (0 while somebody reads it), its name
SMALL_BYTES = 64 << 20  # larger ones go when nobody reads them any more
PRUNE_SECONDS = 60.0  # between looks at all of them
UNUSED_SECONDS = 7 * 24 * 3600.0  # after which a copy goes

_store: tuple[Path, int] | None = None  # in which this process keeps copies, and the bytes that they may take there
_pruned = -PRUNE_SECONDS  # when this process has looked last


class Copy(NamedTuple):
    """A copy: its folder, the file's name, the bytes that it takes, and when it was opened last (s since 1970)."""

    folder: Path
    name: str
    nbytes: int
    last_used: int


def keep_in(store: Path | None, quota: int = 0) -> None:
    """Have this process keep copies in a store that may hold so many bytes; None: in a folder for temporary files."""
    global _store
    _store = None if store is None else (store, quota // 2)


def head(name: str, changed: int = 0) -> bytes:
    """Return what `MARKS` begins with."""
    return HEAD.pack(changed, name.encode(errors="surrogateescape")[: HEAD.size - 8])


def copies_in(root: Path) -> list[Copy]:
    """Return the copies in a store, or another folder, that of the longest unused first."""
    copies: list[tuple[int, Copy]] = []
    for marks in root.glob(f"*/{MARKS}"):
        with contextlib.suppress(OSError), marks.open("rb") as file:
            name = HEAD.unpack(file.read(HEAD.size).ljust(HEAD.size, b"\0"))[1].rstrip(b"\0")
            nbytes = sum(path.lstat().st_blocks * 512 for path in marks.parent.iterdir())
            used = marks.parent.stat().st_mtime_ns
            copies.append((used, Copy(marks.parent, name.decode(errors="replace"), nbytes, used // 10**9)))
    return [copy for _, copy in sorted(copies)]


def evict(folder: Path) -> bool:
    """Remove a copy, unless somebody has it open; return whether it is gone."""
    with contextlib.suppress(OSError), open(folder / MARKS, "rb") as marks:
        fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
        forget(folder)
    return not (folder / MARKS).exists()


def forget(folder: str | os.PathLike[str]) -> None:
    """Remove a copy that is locked."""
    shutil.rmtree(folder, ignore_errors=True)


def make_folder(name: str, state: RemoteState) -> Path:
    """Return the folder of the copy of a file with this content, which is made; another content has another one.

    After a restart of the machine another one is made: a disk may not have all that was written before.
    """
    room = sys.maxsize
    if _store is not None and state.size <= _store[1]:
        root, room = _store
    else:
        root = _temporary()
    digest = hashlib.sha256("\0".join(["2", name, *map(str, state), _boot()]).encode()).hexdigest()
    folder = root / f"{digest[:16]}-{digest[16:32]}"  # the library counts what lies in folders of such names
    if not folder.exists():
        _make_room(root, room - state.size, state.size > SMALL_BYTES)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(_unusable_text(root, error.strerror or str(error))) from None
    return folder


def _make_room(root: Path, room: int, at_once: bool) -> None:
    """Remove copies that nobody has opened for long, and others while they take too much; none that is open."""
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
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise UsageError(_unusable_text(root, error.strerror or str(error))) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UsageError(_unusable_text(root, "others may write there, or it is not yours"))
    return root


def _unusable_text(root: Path, why: str) -> str:
    return f"files elsewhere are read by way of {root}, which cannot be used: {why}; name a local folder by $TMPDIR"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
