"""Mounting datasets: `mount()` shows them at a folder until it is unmounted, or a signal ends it."""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.mount.datasets import Datasets
from himach.mount.operations import Operations

__all__ = ["mount", "unmount"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IDLE_THREADS = 10
UNMOUNT_SECONDS = 3.0  # seconds in which what is being read when a signal comes may be read to its end


def mount(datasets: Datasets, folder: Path, ready: Callable[[], None], others: bool = False) -> int:
    """Show datasets at a folder until somebody unmounts it, or this process gets SIGINT, SIGTERM or SIGHUP.

    Parameters
    ----------
    datasets
        What to show.
    folder
        Empty, or it does not exist yet and is made; then it is removed at the end.
    ready
        Called, by another thread, when it is mounted.
    others
        Let other users read, too.

    Returns
    -------
    int
        The signal that ended it; 0 if it was unmounted.

    Raises
    ------
    UsageError
        The folder cannot be mounted on, or FUSE is not installed here.
    """
    fuse = _mfusepy()
    place = folder.absolute()
    with _mountable(place), _log():
        operations = Operations(datasets, ready)
        mounted = _Mounted(fuse, operations, place, others)
        number = mounted.wait()
        operations.close()
    return number


def unmount(folder: Path, lazy: bool = False) -> bool:
    """Unmount a folder; `lazy`: files that are open stay until they are closed. Return whether it is unmounted."""
    for command in (["fusermount3", "-u"], ["fusermount", "-u"], ["umount"]):
        if shutil.which(command[0]) is not None:
            words = [*command, *([["-z"], ["-l"]][command[0] == "umount"] if lazy else []), os.fspath(folder)]
            if subprocess.run(words, check=False, capture_output=True).returncode == 0:
                return True
    return False


class _Mounted:
    """The file system, served by threads of libfuse, one of which this process has begun.

    Python's signal handlers run in the main thread alone, which therefore stays in Python.
    """

    def __init__(self, fuse: Any, operations: Operations, place: Path, others: bool) -> None:
        self._operations = operations
        self._place = place
        self._until = 0.0
        self._ended = threading.Event()
        self._signal = 0
        self._error: BaseException | None = None
        options: dict[str, Any] = {"foreground": True, "ro": True, "fsname": "himach", "subtype": "himach"}
        options |= {"allow_other": True} if others else {}
        if fuse.fuse_version_major == 3:
            options["max_idle_threads"] = IDLE_THREADS  # libfuse 3.14 complains of its own default

        def serve() -> None:
            try:
                fuse.FUSE(operations, os.fspath(place), **options)
            except BaseException as error:
                self._error = error
            finally:
                self._ended.set()

        self._thread = threading.Thread(target=serve, name="himach-fuse", daemon=True)

    def wait(self) -> int:
        """Serve until the end; return the signal that brought it."""
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            self._thread.start()
            while not self._ended.wait(0.2):
                if self._signal and not (self._operations.awaited and time.monotonic() < self._until):
                    break  # somebody has a file open: reading it fails when this process ends
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if isinstance(self._error, Exception) and not self._signal:
            raise UsageError(f"{self._place} cannot be mounted: see above ({self._error})") from None
        return self._signal

    def _stop(self, number: int, _: object) -> None:
        self._signal = self._signal or number
        self._until = time.monotonic() + UNMOUNT_SECONDS
        unmount(self._place, lazy=True)


def _mfusepy() -> Any:
    """Import mfusepy over the newest libfuse that is here."""
    if "FUSE_LIBRARY_NAME" not in os.environ and ctypes.util.find_library("fuse3"):
        os.environ["FUSE_LIBRARY_NAME"] = "fuse3"
    try:
        import mfusepy
    except ImportError:
        raise UsageError("mounting needs mfusepy: pip install 'himach[mount]'") from None
    except OSError as error:
        raise UsageError(f"mounting needs libfuse (Debian: apt-get install fuse3): {error}") from None
    if not os.path.exists("/dev/fuse"):
        raise UsageError("mounting needs /dev/fuse, which this machine or container does not have")
    return mfusepy


@contextlib.contextmanager
def _mountable(place: Path) -> Iterator[None]:
    """Make the folder, if it is not there; free it of a mount whose process was killed."""
    try:
        os.stat(place)
    except OSError as error:
        if error.errno == errno.ENOTCONN and unmount(place, lazy=True):
            pass
        elif error.errno != errno.ENOENT:
            raise UsageError(f"{place}: {error.strerror}") from None
    made = not place.exists()
    try:
        place.mkdir(exist_ok=True)
        if any(place.iterdir()):
            if os.path.ismount(place):
                raise UsageError(
                    f"{place} is mounted already: read it there, or end what mounted it ('fusermount3 -u {place}')"
                )
            raise UsageError(f"{place} is not empty: mount at a new or an empty folder")
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror}") from None
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # it is busy yet
                place.rmdir()


@contextlib.contextmanager
def _log() -> Iterator[None]:
    """Let the log go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("himach mount: %(asctime)s %(message)s"))
    log = logging.getLogger("himach.mount")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
