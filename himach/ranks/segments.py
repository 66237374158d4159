"""MPI's shared memory, whose names stay in /dev/shm when ranks are killed: `forget_segments()`, `sweep()`."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SHARED = Path("/dev/shm")
#: Names of MPICH, and of UCX below it.
MPICH = "mpich_shm_*"
NAMES = (MPICH, "mpich_shar_tmp*", "ucx_shm_posix_*")
DYING_SECONDS = 2.0  # most seconds that killed ranks still have segments
CLOCK_SECONDS = 1.0  # seconds by which a file may seem older than it is


def forget_segments() -> None:
    """Unlink the MPICH segments that this rank has mapped; all ranks of the node must have mapped them."""
    for path in set(_mapped("self")):
        if Path(path).match(MPICH) and path.startswith(f"{SHARED}/"):
            with contextlib.suppress(OSError):
                os.unlink(path)


def shared_bytes() -> int:
    """Return the size of this node's shared memory in bytes, according to its file system."""
    return shutil.disk_usage(SHARED).total if SHARED.exists() else sys.maxsize


def sweep(start: float, shared: Path = SHARED) -> None:
    """Unlink this user's segments that are newer than `start` and that no process has mapped or open."""
    deadline = time.monotonic() + DYING_SECONDS
    while candidates := {path for name in NAMES for path in _own_segments(shared, name, start - CLOCK_SECONDS)}:
        if not _unlink_unused(candidates) or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _own_segments(shared: Path, name: str, start: float) -> Iterator[str]:
    for path in shared.glob(name):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and start <= status.st_ctime:
                yield os.fspath(path)


def _unlink_unused(segments: set[str]) -> bool:
    """Unlink the segments that no process has mapped or open; return whether others are left."""
    in_use = segments.intersection(_paths_in_use())
    for path in segments - in_use:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return bool(in_use)


def _paths_in_use() -> Iterator[str]:
    """Yield the files that processes have open or mapped, as far as this user may see them."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            yield from _open(folder / "fd")  # first, as a rank closes a segment when it has mapped it
            yield from _mapped(folder.name)


def _mapped(process: str) -> Iterable[str]:
    try:
        lines = Path("/proc", process, "maps").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    return [line[line.index("/") :] for line in lines if f" {SHARED}/" in line]


def _open(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(link)
