"""One process at a time in a directory: `locked()` waits for others; `Lock` has a file that tells its `holder()`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from himach.errors import HimachError

#: What a file system answers that has no locks: then a run on this machine is known by its process.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
#: Seconds that `locked()` waits for others, whose work in a directory takes far less.
PATIENCE = 60
#: What a disk answers that is full, or a limit of the process (ulimit -f): then a lock does not say who holds it.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only process of this machine that locks a directory; a stopped process is not waited for."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise HimachError(f"{path} is locked for {PATIENCE} s{_locker(directory)}") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(directory)


def _locker(file: int) -> str:
    """Return which process locks an open file, where the kernel tells; else ""."""
    pids = [line.split()[-4] for line in Path("/proc/locks").read_text().splitlines()
            if "FLOCK" in line and line.split()[-3].endswith(f":{os.fstat(file).st_ino}")]  # fmt: skip
    return f" by process {pids[0]}: let it go on, or end it" if pids else ""


class HeldError(Exception):
    """Another process holds the lock; the text says which."""


class Lock:
    """The lock on a directory, which the kernel gives up when this process ends in whatever way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_kernel = True
        self._file = self._open_locked()
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}, since {_now()}".encode(), 0)
        except OSError as error:
            if not self._by_kernel or error.errno not in DISK_FULL:
                self.release()
                raise

    @property
    def held(self) -> bool:
        """Whether it was not released yet."""
        return self._file >= 0

    def remove(self) -> None:
        """Remove its file while it is held: whoever opened that before finds that it has gone."""
        self.path.unlink()

    def release(self) -> None:
        """Let others have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open_locked(self) -> int:
        """Return the file, open and locked."""
        while True:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path.parent)
                lock = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                if not self.path.parent.parent.is_dir():
                    raise
                continue  # the folder went with another's
            try:
                self._by_kernel = _take(lock)
                if os.path.samestat(os.fstat(lock), os.stat(self.path)):
                    return lock
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)


def holder(path: Path) -> str:
    """Return which process holds a lock, as its file says; "" if nobody does.

    Of a process on another machine it cannot be told whether it lives still.
    """
    try:
        text = path.read_bytes()[:200].decode(errors="replace")
    except OSError:
        return ""
    elsewhere = f" on {socket.gethostname()}," not in text
    return text if elsewhere or _lives(text) else ""


def _take(lock: int) -> bool:
    """Take a lock; return whether the kernel keeps it, or what is written in it has to."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        if not _lives(os.pread(lock, 200, 0).decode(errors="replace")):
            return False
    raise HeldError(os.pread(lock, 200, 0).decode(errors="replace") or "just started")


def _lives(holder: str) -> bool:
    """Tell whether the process that a lock names is on this machine and alive."""
    words = holder.replace(",", "").split()
    return len(words) > 3 and words[3] == socket.gethostname() and Path("/proc", words[1]).exists()


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
