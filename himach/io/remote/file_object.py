"""A file elsewhere as a file of Python: `FileObject`, for libraries that read one by seeking in it, such as HDF5's."""

from __future__ import annotations

import io
import os
from typing import Any

from himach.io.remote.byte_file import ByteFile

#: Of these, what is smaller is read with what lies around it: libraries look at one piece of their index after another.
PAGE_BYTES = 1 << 15


class FileObject(io.RawIOBase):
    """A file that is read by seeking in it.

    Parameters
    ----------
    path
        Of a file, or a URL's name.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file = ByteFile(path)
        self._size, self._at = self._file.status.size, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that any byte can be read."""
        return True

    def tell(self) -> int:
        """Return the byte that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte, counted from the beginning, from here or from the end, and return its number."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read bytes, as many as the buffer has or there are; return how many."""
        end = min(self._size, self._at + len(buffer))
        page = PAGE_BYTES if len(buffer) < PAGE_BYTES else 1
        self._file.need(self._at // page * page, -(-end // page) * page)
        begin = self._at
        while self._at < end:
            taken = os.preadv(self._file.descriptor, [memoryview(buffer)[self._at - begin : end - begin]], self._at)
            if not taken:
                raise ValueError("the file has become shorter since it was opened")
            self._at += taken
        return self._at - begin

    def close(self) -> None:
        """Close it; may be called again."""
        super().close()
        self._file.close()
