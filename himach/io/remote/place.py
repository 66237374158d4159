"""Where a node has what has come of files elsewhere: `folder_of()`; folders that nobody wants go when one is made."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
from pathlib import Path

from himach.errors import UsageError
from himach.io.remote.transport import RemoteState

__all__ = ["MARKS", "folder_of"]

VERSION = 1
MARKS = "blocks.here"  # which of a file's blocks are there; who has the file open has a shared lock on it
PRUNE_SECONDS = 60.0  # between looks at all of them
UNUSED_SECONDS = 7 * 24 * 3600.0  # after which a folder goes

_pruned = -PRUNE_SECONDS  # when this process has looked last


def folder_of(name: str, state: RemoteState) -> Path:
    """Return the folder of a file with this content, which is made; another content has another one.

    It lies in ``himach-remote-<uid>`` in ``$SLURM_TMPDIR``, else in ``$TMPDIR``, else in ``/var/tmp``. After a restart
    of the machine another one is made: a disk may not have all that was written before.

    Raises
    ------
    UsageError
        The folder is not this user's own, or cannot be made.
    """
    root = _root()
    made_of = "\0".join([str(VERSION), name, *map(str, state), _boot()])
    folder = root / hashlib.sha256(made_of.encode()).hexdigest()[:32]
    global _pruned
    if not folder.exists() and time.monotonic() > _pruned + PRUNE_SECONDS:
        _pruned = time.monotonic()
        _prune(root)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(_unusable(root, error.strerror or str(error))) from None
    return folder


def _prune(root: Path) -> None:
    """Remove folders that nobody has opened for long, and nobody has open."""
    for folder in root.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > UNUSED_SECONDS:
                with open(folder / MARKS, "rb") as marks:
                    fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)


def _root() -> Path:
    base = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/var/tmp"
    root = Path(base, f"himach-remote-{os.geteuid()}")
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise UsageError(_unusable(root, error.strerror or str(error))) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UsageError(_unusable(root, "others may write there, or it is not yours"))
    return root


def _unusable(root: Path, why: str) -> str:
    return f"files elsewhere are read by way of {root}, which cannot be used: {why}; name a local folder by $TMPDIR"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
