"""A folder seen through a file system that takes its time, as a network's does when many ask at once.

``python slow_files.py FOLDER MOUNTPOINT SECONDS COUNT`` shows FOLDER at MOUNTPOINT, read-only, each request (a look at
a name, an open, a listing) so many seconds late, and keeps their number in the file COUNT. It needs FUSE and mfusepy
(``pip install mfusepy``, ``apt-get install libfuse3-3``), and what there is to end it is ``umount MOUNTPOINT``.

What docs/slurm.md tells was counted so: links to all of site-packages in FOLDER, and PYTHONPATH=MOUNTPOINT.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

TIMES = {"st_mtime": "st_mtime_ns", "st_atime": "st_atime_ns", "st_ctime": "st_ctime_ns"}
OTHERS = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")


def main(folder: str, mountpoint: str, seconds: float, count: str) -> None:
    """Show it until it is unmounted."""
    import mfusepy

    class Slow(mfusepy.Operations):
        use_ns = True
        requests = 0

        def late(self, path):
            self.requests += 1
            time.sleep(seconds)
            return folder + path

        def getattr(self, path, fh=None):
            try:
                found = os.stat(self.late(path))
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno) from None
            return {name: getattr(found, TIMES.get(name, name)) for name in (*OTHERS, *TIMES)}

        def readdir(self, path, fh):
            return [".", "..", *os.listdir(self.late(path))]

        def open(self, path, flags):
            return os.open(self.late(path), os.O_RDONLY)

        def read(self, path, size, offset, fh):
            return os.pread(fh, size, offset)

        def release(self, path, fh):
            os.close(fh)
            return 0

    slow, numbers = Slow(), Path(count).resolve()

    def note():
        while True:
            numbers.write_text(str(slow.requests))
            time.sleep(0.2)

    threading.Thread(target=note, daemon=True).start()
    mfusepy.FUSE(slow, mountpoint, foreground=True, ro=True, attr_timeout=1, entry_timeout=1)


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])
