"""Exclusive locks on directories: `locked()` waits for others; `Lock` has a file that names its `holder()`."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from himach.errors import HimachError

#: Errors of file systems without locks: then the process ID tells whether a holder on this machine is alive.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
#: Seconds that `locked()` waits for others, who normally take far less.
PATIENCE = 60
#: Errors of a full disk or a process limit (ulimit -f): then a lock does not name its holder.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a directory against other processes of this machine; raise HimachError after `PATIENCE` seconds."""
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
    """Return which process locks an open file, if the kernel tells; else ""."""
    pids = [line.split()[-4] for line in Path("/proc/locks").read_text().splitlines()
            if "FLOCK" in line and line.split()[-3].endswith(f":{os.fstat(file).st_ino}")]  # fmt: skip
    return f" by process {pids[0]}: let it go on, or end it" if pids else ""


class HeldError(Exception):
    """Another process holds the lock; the text says which."""


class Lock:
    """The lock on a directory, which the kernel releases however this process ends."""

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
        """Whether it is not yet released."""
        return self._file >= 0

    def remove(self) -> None:
        """Remove its file while it is held; a process that opened the file before detects the removal."""
        self.path.unlink()

    def release(self) -> None:
        """Release the lock."""
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
                continue  # another process removed the folder
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
    """Return the holder of a lock as named in its file; "" if there is none.

    A process on another machine counts as alive, because that cannot be checked.
    """
    try:
        text = path.read_bytes()[:200].decode(errors="replace")
    except OSError:
        return ""
    elsewhere = f" on {socket.gethostname()}," not in text
    return text if elsewhere or _lives(text) else ""


def _take(lock: int) -> bool:
    """Take a lock; return whether the kernel keeps it, rather than only the text in its file."""
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
    """Return whether the process named in a lock is on this machine and alive."""
    words = holder.replace(",", "").split()
    return len(words) > 3 and words[3] == socket.gethostname() and Path("/proc", words[1]).exists()


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
