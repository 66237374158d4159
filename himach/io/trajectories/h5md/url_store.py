"""Zarr by URL: `open_store()` gives zarr the files below a URL, read through the node's mirrors."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from fsspec.asyn import AsyncFileSystem
from zarr.storage import FsspecStore

from himach.io.trajectories.urls.byte_file import ByteFile, exists
from himach.io.trajectories.urls.transport import RemoteError


def open_store(url: str) -> Any:
    """Return zarr's store of the files below a URL."""
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
