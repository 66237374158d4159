"""A folder whose files fail to be read when told so: a read-only FUSE file system, spoken to by the kernel itself.

`failing_folder()` mounts one over a folder's content; its `fail()` says which of the next calls end with which error.
The file system is a process of its own (this file, run as a program), as whoever reads may hold the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support import needs

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 27, 28, 29, 36, 42
CALLS = {OPEN: "open", READ: "read", GETATTR: "getattr"}
REFUSED = b"may not be mounted\n"
DIRECT_IO = 1  # every read comes here, none from memory


class FailingFolder:
    """A mounted folder and the file by which its process is told what to do."""

    def __init__(self, path: Path, control: Path) -> None:
        self.path = path
        self._control = control

    def fail(self, number: int, call: str = "read", *, after: int = 0, count: int = 1) -> None:
        """Let `count` calls fail with an error number, after so many more that do not."""
        self._control.with_suffix(".new").write_text(f"{time.monotonic_ns()} {number} {call} {after} {count}")
        self._control.with_suffix(".new").rename(self._control)

    def failed(self) -> int:
        """Return how many calls have failed."""
        counted = self._control.with_suffix(".failed")
        return int(counted.read_text()) if counted.exists() else 0


@contextlib.contextmanager
def failing_folder(content: Path, path: Path, control: Path) -> Iterator[FailingFolder]:
    """Mount the files of the folder `content` at a new folder `path`."""
    needs.root("to mount a file system")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        needs.skip("a /dev/fuse that this user may open")
    path.mkdir()
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-P", __file__, str(content), str(path), str(control)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": tests}, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if said == REFUSED:
            needs.skip("a FUSE file system that can be mounted")
        assert said == b"mounted\n"
        yield FailingFolder(path, control)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)
        process.terminate()
        process.wait()


class _Server:
    """The file system's side: files of one folder, by the order in which they were looked up."""

    def __init__(self, content: str, control: str, device: int) -> None:
        self._content = content
        self._control = Path(control)
        self._device = device
        self._paths = {1: content}
        self._plan: list[str] = []
        self._left = [0, 0]
        self._failed = 0

    def run(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return
            _, call, unique, node = struct.unpack_from("<IIQQ", request)
            if call in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            number, answer = self._failure(call), b""
            if not number:
                try:
                    answer = self._answer(call, node, request[40:])
                except OSError as error:
                    number = error.errno or errno.EIO
            with contextlib.suppress(OSError):  # the caller was killed meanwhile
                os.write(self._device, struct.pack("<IiQ", 16 + len(answer), -number, unique) + answer)

    def _failure(self, call: int) -> int:
        """Return the number of the error with which this call is to fail; 0 for none."""
        with contextlib.suppress(FileNotFoundError):
            plan = self._control.read_text().split()
            if plan != self._plan:
                self._plan, self._left = plan, [int(plan[3]), int(plan[4])]
        if not self._plan or CALLS.get(call) != self._plan[2]:
            return 0
        which = 0 if self._left[0] else 1
        if not self._left[which]:
            return 0
        self._left[which] -= 1
        if which:
            self._failed += 1
            self._control.with_suffix(".failed").write_text(str(self._failed))
        return int(self._plan[1]) if which else 0

    def _answer(self, call: int, node: int, body: bytes) -> bytes:
        path = self._paths.get(node, "")
        if call == INIT:
            major, minor, ahead, _ = struct.unpack_from("<IIII", body)
            return struct.pack("<IIIIHHIIHHI28x", major, min(minor, 31), ahead, 0, 0, 0, 1 << 17, 1, 0, 0, 0)
        if call == LOOKUP:
            child = os.path.join(path, body.rstrip(b"\0").decode())
            status = os.stat(child)
            self._paths[status.st_ino] = child
            return struct.pack("<QQQQII", status.st_ino, 0, 0, 0, 0, 0) + _attributes(status)
        if call == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + _attributes(os.stat(path))
        if call in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, DIRECT_IO if call == OPEN else 0, 0)
        if call == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            with open(path, "rb") as file:
                return os.pread(file.fileno(), size, offset)
        if call == STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if call in (READDIR, RELEASE, RELEASEDIR, FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "not here")


def _attributes(status: os.stat_result) -> bytes:
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    seconds, parts = zip(*(divmod(each, 10**9) for each in times), strict=True)
    owner = (status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0)
    return struct.pack("<QQQ3Q3I7I", status.st_ino, status.st_size, status.st_blocks, *seconds, *parts, *owner)


def main(content: str, path: str, control: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"failing", os.fsencode(path), b"fuse", 6, options.encode()):
        number = ctypes.get_errno()
        sys.stdout.buffer.write(REFUSED if number in (errno.EPERM, errno.EACCES, errno.ENODEV) else b"")
        sys.exit(os.strerror(number))
    print("mounted", flush=True)
    _Server(content, control, device).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
