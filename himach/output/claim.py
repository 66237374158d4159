"""A directory that one run writes to: `Claim`, held by a lock from before the run until its outcome is there.

In the directory lies a folder ``.himach`` as long as a run is under way: its lock, the files that it is about to leave,
and which files of the directory are himach's to remove. A killed run leaves that folder, and no lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import time
from pathlib import Path
from types import TracebackType

from himach.errors import UsageError

FOLDER = ".himach"
LOCK = "lock"
RECORD = "run.json"
#: What a file system answers that has no locks: then a run on this machine is known by its process.
LOCKLESS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class Claim:
    """The right to write to a directory; to be released.

    Attributes
    ----------
    out
        The directory.
    folder
        ``.himach`` in it.
    staged
        A folder in that one for what is to appear in the directory.
    note
        A file in it for what an unfinished exchange of files may have left in the directory.

    Raises
    ------
    UsageError
        If another run has it.
    OSError
        If it cannot be written.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / FOLDER
        self.staged = self.folder / "new"
        self.note = self.folder / "owned.json"
        self._lock = self._locked()
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}, since {_now()}".encode(), 0)
            shutil.rmtree(self.staged, ignore_errors=True)  # a killed run's
            self.staged.mkdir()
        except OSError:
            self.release()
            raise

    @staticmethod
    def is_in(out: Path) -> bool:
        """Tell whether a run writes, or was killed while it wrote, to `out`."""
        return (out / FOLDER).is_dir() and not (out / FOLDER).is_symlink()

    def release(self) -> None:
        """Let others have it; what is staged goes, and the folder where the directory is known as a run's without."""
        if self._lock < 0:
            return
        shutil.rmtree(self.staged, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in {*self.folder.iterdir()} - {self.folder / LOCK, self.note}:
                path.unlink()  # what a killed run was writing
            known = (self.out / RECORD).exists() or os.listdir(self.out) == [FOLDER]
            if known and not self.note.exists():
                (self.folder / LOCK).unlink()  # while it is held: whoever opened it before finds that it has gone
        os.close(self._lock)
        self._lock = -1
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _locked(self) -> int:
        """Return the open lock, which the kernel gives up when this process ends in whatever way."""
        while True:
            self.folder.mkdir(exist_ok=True)
            try:
                lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                continue  # another run has just ended
            try:
                self._take(lock)
                if os.path.samestat(os.fstat(lock), os.stat(self.folder / LOCK)):
                    return lock
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in LOCKLESS:
                raise
            if not _lives(os.pread(lock, 200, 0).decode(errors="replace")):
                return
        holder = os.pread(lock, 200, 0).decode(errors="replace") or "just started"
        raise UsageError(
            f"output directory {self.out}: another run writes there ({holder}); wait for its end, or name another "
            "directory"
        )

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _lives(holder: str) -> bool:
    """Tell whether the process that a lock names is on this machine and alive."""
    words = holder.replace(",", "").split()
    return len(words) > 3 and words[3] == socket.gethostname() and Path("/proc", words[1]).exists()


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
