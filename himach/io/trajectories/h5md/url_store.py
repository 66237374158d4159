"""H5MD by URL, through the node's mirrors: `open_store()` gives zarr the files below one, `RemoteFile` is h5py's."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile

from himach.io.trajectories.urls.byte_file import ByteFile, exists
from himach.io.trajectories.urls.transport import RemoteError

#: Bytes read at least: HDF5 reads its index in small pieces.
READAHEAD_BYTES = 1 << 15


class RemoteFile(AbstractBufferedFile):  # type: ignore[misc]
    """A remote file that h5py reads; raises OSError if it cannot be opened."""

    def __init__(self, url: str) -> None:
        self._file = ByteFile(url)
        super().__init__(None, url, block_size=READAHEAD_BYTES, size=self._file.status.size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        content = self._file.pread(end - start, start)
        if len(content) < end - start:  # h5py would fill up with zeros
            raise ValueError("the file has become shorter since it was opened")
        return content

    def close(self) -> None:
        """Close it; may be called again."""
        super().close()
        self._file.close()


def open_store(url: str) -> Any:
    """Return zarr's store of the files below a URL."""
    from zarr.storage import FsspecStore

    return FsspecStore(_MirroredFiles(url), read_only=True, path="")


class _MirroredFiles(AsyncFileSystem):  # type: ignore[misc]
    """The files below a URL, which cannot be listed."""

    cachable = False

    def __init__(self, url: str) -> None:
        super().__init__(asynchronous=True)
        self._url = url.rstrip("/")

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        return await asyncio.to_thread(_read, f"{self._url}/{path}", start, end)

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        return await asyncio.to_thread(exists, f"{self._url}/{path}")


def _read(url: str, start: int | None, end: int | None) -> bytes:
    try:
        with ByteFile(url) as file:
            start, stop, _ = slice(start, end).indices(file.status.size)
            return file.pread(stop - start, start)
    except RemoteError as error:
        if error.errno == errno.ENOENT:
            raise FileNotFoundError(url) from None
        raise
