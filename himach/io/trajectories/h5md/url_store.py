"""Zarr by URL: `open_url()` opens a tree whose files zarr reads through the node's mirrors."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from io import UnsupportedOperation
from typing import Any

from zarr import open_group
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from himach.io.trajectories.urls.byte_file import ByteFile, exists
from himach.io.trajectories.urls.transport import RemoteError


def open_url(url: str) -> Any:
    """Open a group of Zarr."""
    return open_group(_UrlStore(url), mode="r")


class _UrlStore(Store):  # type: ignore[misc]
    """The files below a URL, which cannot be listed."""

    supports_writes = False
    supports_deletes = False
    supports_listing = False

    def __init__(self, url: str) -> None:
        super().__init__(read_only=True)
        self._url = url.rstrip("/")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _UrlStore) and other._url == self._url

    __hash__ = None  # type: ignore[assignment]

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        content = await asyncio.to_thread(_content, f"{self._url}/{key}", byte_range)
        return None if content is None else prototype.buffer.from_bytes(content)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges)))

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(exists, f"{self._url}/{key}")

    def _refuse(self, *args: Any) -> Any:
        """Refuse methods that zarr does not call on a store that is neither writable nor listable."""
        raise UnsupportedOperation(f"{self._url} can be read by the names of its files alone")

    set = delete = list = list_prefix = list_dir = _refuse


def _content(url: str, byte_range: ByteRequest | None) -> bytes | None:
    """Return a file's bytes, or a range of them; None if there is no such file."""
    try:
        with ByteFile(url) as file:
            size = file.status.size
            if byte_range is None:
                first, stop = 0, size
            elif isinstance(byte_range, RangeByteRequest):
                first, stop = byte_range.start, byte_range.end
            elif isinstance(byte_range, OffsetByteRequest):
                first, stop = byte_range.offset, size
            else:
                first, stop = max(0, size - byte_range.suffix), size
            return file.pread(stop - first, first)
    except RemoteError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
