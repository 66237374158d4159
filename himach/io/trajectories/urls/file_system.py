"""Remote files by fsspec: `FileSystemTransport`; `HttpTransport` checks each answer of an HTTP server.

fsspec's own HTTP reads neither compare range and ETag with the request nor bound an answer in bytes and time. So fsspec
gives the session, the credentials and the proxies, and this module reads the answer.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Mapping
from typing import Any

from himach.io.trajectories.urls.names import redact
from himach.io.trajectories.urls.transport import (
    CONNECT_SECONDS,
    SILENT_SECONDS,
    PassingError,
    RemoteChangedError,
    RemoteError,
    RemoteState,
    Sink,
    Transport,
)

_NO_RANGE = re.compile(r"bytes \*/(\d{1,18})")


class FileSystemTransport(Transport):
    """Transport of one file by its path in a file system of fsspec, with fsspec's settings of credentials."""

    def __init__(self, name: str, file_system: Any, path: str) -> None:
        super().__init__(name)
        self.path = path
        self._files = file_system

    def state(self) -> RemoteState:
        """Ask for the file's state."""
        facts = self.guard(self._info)
        if facts.get("size") is None or facts.get("type") == "directory":
            raise RemoteError(self.name, "it is no file; give the URL of one", errno.EISDIR)
        tag = facts.get("ETag") or facts.get("etag") or facts.get("md5Hash") or facts.get("content_md5") or ""
        dates = (facts.get(name) for name in ("LastModified", "last_modified", "updated", "mtime", "modified"))
        return RemoteState(int(facts["size"]), str(tag), str(next(filter(None, dates), "")))

    def read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        content = self.guard(lambda: self._files.cat_file(self.path, start=start, end=stop))
        now = self.state()  # such file systems do not say which state the bytes belong to
        if now != state:
            raise self.changed_error(state, now)
        if len(content) != stop - start:
            raise PassingError(f"{len(content)} bytes came, and {stop - start} were asked for")
        sink(content)

    def _info(self) -> Mapping[str, Any]:
        self._files.invalidate_cache()
        facts: Mapping[str, Any] = self._files.info(self.path)
        return facts


class HttpTransport(FileSystemTransport):
    """Transport over HTTP by persistent connections; refuses bytes that were not asked for."""

    def state(self) -> RemoteState:
        """Ask for the first byte: signed URLs allow only GET, and some servers give the size only this way."""
        return self._ask(0, 1, None, lambda piece: None)

    def read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        self._ask(start, stop, state, sink)

    def translate_error(self, error: Exception) -> Exception | None:
        """Return the error that stands for one of aiohttp."""
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return RemoteError(self.name, f"the server's certificate is not trusted: {redact(str(error))[:200]}")
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

    def _ask(self, start: int, stop: int, state: RemoteState | None, sink: Sink) -> RemoteState:
        from fsspec.asyn import sync

        now: RemoteState = self.guard(lambda: sync(self._files.loop, self._request, start, stop, state, sink))
        return now

    async def _request(self, start: int, stop: int, state: RemoteState | None, sink: Sink) -> RemoteState:
        import aiohttp

        session = await self._files.set_session()
        options = dict(self._files.kwargs)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        options |= {"headers": {**(options.get("headers") or {}), **headers}, "timeout": limits}
        async with (
            asyncio.timeout(SILENT_SECONDS) as bound,
            session.get(self._files.encode_url(self.path), **options) as answer,
        ):
            now = self._check_answer(answer, start, stop)
            if state is not None:
                if now._replace(ranged=state.ranged) != state:
                    raise self.changed_error(state, now)
                if not now.ranged and (start, stop) != (0, state.size):
                    raise RemoteError(self.name, "the server gave ranges of it, and does not any more")
                bound.reschedule(None)  # the sink bounds the time of a body
            elif not now.ranged or not now.size:
                return now
            remaining = min(stop, now.size) - start
            async for piece in answer.content.iter_any():
                if len(piece) > remaining:
                    raise RemoteError(self.name, "the server sends more bytes than were asked for")
                sink(piece)
                remaining -= len(piece)
            if remaining:
                raise PassingError("the answer ended before its end")
            return now

    def _check_answer(self, answer: Any, start: int, stop: int) -> RemoteState:
        """Return the state that an answer gives; refuse an answer with other content."""
        status, headers = answer.status, answer.headers
        tag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        if status == 416 and (match := _NO_RANGE.fullmatch(headers.get("Content-Range", ""))):
            if start == 0 and int(match[1]) == 0:
                return RemoteState(0, tag, modified)
            message = f"it has changed since it was opened: it has {match[1]} bytes now"
            raise RemoteChangedError(self.name, message, errno.ESTALE)
        if status not in (200, 206):
            raise self.http_error(status, f"the server says {status}", headers)
        packed = headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            message = f"the server sends it packed ({packed}), though it was asked not to"
            raise RemoteError(self.name, f"{message}; download the file and name the local one")
        if headers.get("Content-Type", "").lower().startswith("text/html") and not self.path.lower().endswith("html"):
            raise RemoteError(
                self.name, "the server sends a web page in place of the file; give the address of the file itself"
            )
        if status == 206:
            return RemoteState(self.parse_size(headers.get("Content-Range"), start, stop), tag, modified)
        length = headers.get("Content-Length")
        if length is None:
            raise RemoteError(
                self.name, "the server tells neither ranges nor the size; download the file and name the local one"
            )
        return RemoteState(int(length), tag, modified, ranged=False)
