"""MPI's shared memory, whose names stay in /dev/shm when ranks are killed: `forget_segments()`, `sweep()`.

``python -I -S segments.py SINCE STATUS`` sweeps and exits with STATUS: this file imports no other of himach.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SHARED = Path("/dev/shm")
#: Names of MPICH, UCX below it and Open MPI; Open MPI attaches segments late, so that their names must stay in a run.
MPICH = "mpich_shm_*"
NAMES = (MPICH, "mpich_shar_tmp*", "ucx_shm_posix_*", "sm_segment.*", "vader_segment.*")
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
    return _filesystem_bytes("f_blocks")


def free_bytes() -> int:
    """Return the free shared memory of this node in bytes."""
    return _filesystem_bytes("f_bavail")


def _filesystem_bytes(blocks: str) -> int:
    try:
        status = os.statvfs(SHARED)
    except OSError:
        return sys.maxsize
    return int(getattr(status, blocks) * status.f_frsize)


def sweep(since: float, shared: Path = SHARED) -> None:
    """Unlink this user's segments that are newer than `since` and that no process has mapped or open."""
    deadline = time.monotonic() + DYING_SECONDS
    while candidates := {os.fspath(path) for name in NAMES for path in shared.glob(name) if _is_ours(path, since)}:
        in_use = candidates.intersection(_paths_in_use())
        for path in candidates - in_use:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if not in_use or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _is_ours(path: Path, since: float) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and status.st_ctime >= since - CLOCK_SECONDS


def _paths_in_use() -> Iterator[str]:
    """Yield the files that processes have mapped or open, as far as this user may see them."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            yield from _mapped(folder.name)
            yield from _open(folder / "fd")


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


if __name__ == "__main__":
    sweep(float(sys.argv[1]))
    sys.exit(int(sys.argv[2]))
