"""Files elsewhere by fsspec: `FileSystemTransport`; `HttpTransport` checks each answer of a server of HTTP.

fsspec's own reading of HTTP compares neither range nor ETag with what was asked for, and bounds no answer in bytes and
time: of it come the session, the credentials and the proxies, and the answer is read here.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Mapping
from typing import Any

from himach.io.remote.errors import PassingError, RemoteChangedError, RemoteError
from himach.io.remote.transport import CONNECT_SECONDS, SILENT_SECONDS, RemoteState, Sink, Transport
from himach.io.remote.url import masked

_NO_RANGE = re.compile(r"bytes \*/(\d{1,18})")


class FileSystemTransport(Transport):
    """Asks for one file by a file system of fsspec and its path there; fsspec's settings of credentials hold."""

    def __init__(self, name: str, file_system: Any, path: str) -> None:
        super().__init__(name)
        self.path = path
        self._files = file_system

    def state(self) -> RemoteState:
        """Ask for the file's state."""
        facts = self.guarded(self._info)
        if facts.get("size") is None or facts.get("type") == "directory":
            raise RemoteError(self.name, "it is no file; give the URL of one", errno.EISDIR)
        tag = facts.get("ETag") or facts.get("etag") or facts.get("md5Hash") or facts.get("content_md5") or ""
        dates = (facts.get(name) for name in ("LastModified", "last_modified", "updated", "mtime", "modified"))
        return RemoteState(int(facts["size"]), str(tag), str(next(filter(None, dates), "")))

    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        content = self.guarded(lambda: self._files.cat_file(self.path, start=begin, end=end))
        now = self.state()  # such file systems do not tell what state their bytes are of
        if now != state:
            raise self.changed(state, now)
        if len(content) != end - begin:
            raise PassingError(f"{len(content)} bytes came, and {end - begin} were asked for")
        sink(content)

    def _info(self) -> Mapping[str, Any]:
        self._files.invalidate_cache()
        facts: Mapping[str, Any] = self._files.info(self.path)
        return facts


class HttpTransport(FileSystemTransport):
    """Asks a server of HTTP, over connections that stay open; nothing of an answer is taken that was not asked for."""

    def state(self) -> RemoteState:
        """Ask for the first byte: signed URLs are for GET alone, and some servers tell the size only so."""
        return self._ask(0, 1, None, lambda piece: None)

    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        self._ask(begin, end, state, sink)

    def named(self, error: Exception) -> Exception | None:
        """Return what an error of aiohttp means."""
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return RemoteError(self.name, f"the server's certificate is not trusted: {masked(str(error))[:200]}")
        if isinstance(error, aiohttp.ClientConnectorError):
            unknown = isinstance(error.os_error, socket.gaierror) and error.os_error.errno == socket.EAI_NONAME
            return RemoteError(self.name, f"there is no host {error.host}", errno.EHOSTUNREACH) if unknown else None
        if isinstance(error, aiohttp.TooManyRedirects):
            return RemoteError(self.name, "the server sends from one address to the next without end")
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
            return RemoteError(self.name, "it, or the address that the server sends to, is no URL")
        return (
            PassingError("the answer ended before its end") if isinstance(error, aiohttp.ClientPayloadError) else None
        )

    def _ask(self, begin: int, end: int, state: RemoteState | None, sink: Sink) -> RemoteState:
        from fsspec.asyn import sync

        now: RemoteState = self.guarded(lambda: sync(self._files.loop, self._asked, begin, end, state, sink))
        return now

    async def _asked(self, begin: int, end: int, state: RemoteState | None, sink: Sink) -> RemoteState:
        import aiohttp

        session = await self._files.set_session()
        options = dict(self._files.kwargs)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        own = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        options |= {"headers": {**(options.get("headers") or {}), **own}, "timeout": limits}
        async with (
            asyncio.timeout(SILENT_SECONDS) as bound,
            session.get(self._files.encode_url(self.path), **options) as answer,
        ):
            now = self._checked(answer, begin, end)
            if state is not None:
                if now._replace(ranged=state.ranged) != state:
                    raise self.changed(state, now)
                if not now.ranged and (begin, end) != (0, state.size):
                    raise RemoteError(self.name, "the server gave ranges of it, and does not any more")
                bound.reschedule(None)  # the sink bounds the time of a body
            elif not now.ranged or not now.size:
                return now
            left = min(end, now.size) - begin
            async for piece in answer.content.iter_any():
                if len(piece) > left:
                    raise RemoteError(self.name, "the server sends more bytes than were asked for")
                sink(piece)
                left -= len(piece)
            if left:
                raise PassingError("the answer ended before its end")
            return now

    def _checked(self, answer: Any, begin: int, end: int) -> RemoteState:
        """Return what an answer says of the file; refuse one that has something else."""
        status, heads = answer.status, answer.headers
        tag, modified = heads.get("ETag", ""), heads.get("Last-Modified", "")
        if status == 416 and (found := _NO_RANGE.fullmatch(heads.get("Content-Range", ""))):
            if begin == 0 and int(found[1]) == 0:
                return RemoteState(0, tag, modified)
            told = f"it has changed since it was opened: it has {found[1]} bytes now"
            raise RemoteChangedError(self.name, told, errno.ESTALE)
        if status not in (200, 206):
            raise self.error_of(status, f"the server says {status}", heads)
        packed = heads.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            told = f"the server sends it packed ({packed}), though it was asked not to"
            raise RemoteError(self.name, f"{told}; download the file and name the local one")
        if heads.get("Content-Type", "").lower().startswith("text/html") and not self.path.lower().endswith("html"):
            raise RemoteError(
                self.name, "the server sends a web page in place of the file; give the address of the file itself"
            )
        if status == 206:
            return RemoteState(self.size_of(heads.get("Content-Range"), begin, end), tag, modified)
        length = heads.get("Content-Length")
        if length is None:
            raise RemoteError(
                self.name, "the server tells neither ranges nor the size; download the file and name the local one"
            )
        return RemoteState(int(length), tag, modified, ranged=False)
