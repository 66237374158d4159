"""Mounting datasets: `mount()` serves them at a folder until an unmount or a signal."""

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
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.mount.operations import Operations
from himach.mount.stores import StoreDatasets

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IDLE_THREADS = 10
UNMOUNT_SECONDS = 3.0  # grace period for open files after a signal


def mount(datasets: StoreDatasets, folder: Path, ready: Callable[[], None], others: bool = False) -> int:
    """Serve datasets at a folder until it is unmounted, or this process gets SIGINT, SIGTERM or SIGHUP."""
    fuse = _mfusepy()
    place = folder.absolute()
    with _mountable(place), _log():
        operations = Operations(datasets, ready)
        number = _serve(fuse, operations, place, others)
        operations.close()
    return number


def unmount(folder: Path, lazy: bool = False) -> bool:
    """Unmount a folder; `lazy`: open files stay until they are closed. Return whether it is unmounted."""
    for command in (["fusermount3", "-u"], ["fusermount", "-u"], ["umount"]):
        if shutil.which(command[0]) is not None:
            words = [*command, *([["-z"], ["-l"]][command[0] == "umount"] if lazy else []), os.fspath(folder)]
            if subprocess.run(words, check=False, capture_output=True).returncode == 0:
                return True
    return False


def _serve(fuse: Any, operations: Operations, place: Path, others: bool) -> int:
    """Serve the file system by libfuse in a thread of its own; return the signal that ended it, 0 for an unmount.

    The main thread stays in Python, as only it runs Python's signal handlers.
    """
    options: dict[str, Any] = {"foreground": True, "ro": True, "fsname": "himach", "subtype": "himach"}
    options |= {"allow_other": True} if others else {}
    if fuse.fuse_version_major == 3:
        options["max_idle_threads"] = IDLE_THREADS  # libfuse 3.14 warns of its own default
    ended: Future[None] = Future()
    signals: list[tuple[int, float]] = []

    def serve() -> None:
        try:
            fuse.FUSE(operations, os.fspath(place), **options)
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)

    def stop(number: int, _: object) -> None:
        signals.append((number, time.monotonic() + UNMOUNT_SECONDS))
        unmount(place, lazy=True)

    old_handlers = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        threading.Thread(target=serve, name="himach-fuse", daemon=True).start()
        while not wait([ended], 0.2).done:
            if signals and time.monotonic() > signals[-1][1]:
                break  # a file may still be open: reading it fails when this process ends
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
    if signals:
        return signals[0][0]
    if isinstance(error := ended.exception(), Exception):
        raise UsageError(f"{place} cannot be mounted: see above ({error})") from None
    return 0


def _mfusepy() -> Any:
    """Import mfusepy with the newest libfuse installed."""
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
    """Make the folder if it is missing; unmount what a killed process left there."""
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
            with contextlib.suppress(OSError):  # it is still busy
                place.rmdir()


@contextlib.contextmanager
def _log() -> Iterator[None]:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("himach mount: %(asctime)s %(message)s"))
    log = logging.getLogger("himach.mount")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
