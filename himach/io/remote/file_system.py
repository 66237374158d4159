"""Files elsewhere by fsspec: `FileSystemTransport`; `HttpTransport` checks each answer of a server of HTTP."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from himach.errors import UsageError
from himach.io.remote.errors import PassingError, RemoteChangedError, RemoteError
from himach.io.remote.transport import (
    CONNECT_SECONDS,
    SILENT_SECONDS,
    RemoteState,
    Sink,
    Transport,
    changed,
    checked_range,
    is_passing,
    refused,
    seconds_after,
)
from himach.io.remote.url import masked

__all__ = ["FileSystemTransport", "HttpTransport"]

_NO_RANGE = re.compile(r"bytes \*/(\d+)")


class FileSystemTransport(Transport):
    """Asks for one file by a file system of fsspec, whose settings of credentials and proxies hold.

    Parameters
    ----------
    name
        Of the file.
    file_system, path
        Of fsspec.
    """

    def __init__(self, name: str, file_system: Any, path: str) -> None:
        super().__init__(name)
        self.path = path
        self._files = file_system

    def state(self) -> RemoteState:
        """Ask for the file's state."""
        facts = self._guarded(self._info)
        if facts.get("size") is None or facts.get("type") == "directory":
            raise RemoteError(self.name, "it is no file; give the URL of one", errno.EISDIR)
        tag = facts.get("ETag") or facts.get("etag") or facts.get("md5Hash") or facts.get("content_md5") or ""
        dates = (facts.get(name) for name in ("LastModified", "last_modified", "updated", "mtime", "modified"))
        return RemoteState(int(facts["size"]), str(tag), str(next(filter(None, dates), "")))

    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        content = self._guarded(lambda: self._files.cat_file(self.path, start=begin, end=end))
        now = self.state()  # such file systems do not tell what state their bytes are of
        if now != state:
            raise changed(self.name, state, now)
        if len(content) != end - begin:
            raise PassingError(f"{len(content)} bytes came, and {end - begin} were asked for")
        sink(content)

    def _info(self) -> Mapping[str, Any]:
        self._files.invalidate_cache()
        found: Mapping[str, Any] = self._files.info(self.path)
        return found

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RemoteError, PassingError):
            raise
        except FileNotFoundError:
            raise RemoteError(self.name, "there is no such file", errno.ENOENT) from None
        except PermissionError as error:
            raise refused(self.name, str(error)) from None
        except ImportError as error:
            raise UsageError(f"{self.name} cannot be read: {error}") from None
        except (OSError, TimeoutError) as error:
            raise PassingError(masked(str(error)) or type(error).__name__) from None
        except Exception as error:  # of the file system's own library
            if "redential" in type(error).__name__ + str(error):
                raise refused(self.name, str(error)) from None
            raise PassingError(masked(f"{type(error).__name__}: {error}")) from None


class HttpTransport(FileSystemTransport):
    """Asks a server of HTTP, over connections that stay open; nothing of an answer is taken that was not asked for."""

    def state(self) -> RemoteState:
        """Ask for the first byte: signed URLs are for GET alone, and some servers tell the size only so."""
        return self._run(0, 1, None, lambda piece: None)

    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        self._run(begin, end, state, sink)

    def _run(self, begin: int, end: int, state: RemoteState | None, sink: Sink) -> RemoteState:
        import aiohttp
        from fsspec.asyn import sync

        try:
            found: RemoteState = sync(self._files.loop, self._asked, begin, end, state, sink)
            return found
        except (RemoteError, PassingError):
            raise
        except aiohttp.ClientConnectorCertificateError as error:
            raise RemoteError(self.name, f"the server's certificate is not trusted: {_said(error)}") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, socket.gaierror) and error.os_error.errno == socket.EAI_NONAME:
                raise RemoteError(self.name, f"there is no host {error.host}", errno.EHOSTUNREACH) from None
            raise PassingError(_said(error)) from None
        except aiohttp.TooManyRedirects:
            raise RemoteError(self.name, "the server sends from one address to the next without end") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise RemoteError(self.name, "it, or the address that the server sends to, is no URL") from None
        except aiohttp.ClientPayloadError:
            raise PassingError("the answer ended before its end") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PassingError(_said(error)) from None

    async def _asked(self, begin: int, end: int, state: RemoteState | None, sink: Sink) -> RemoteState:
        import aiohttp

        session = await self._files.set_session()
        given = dict(self._files.kwargs)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        own = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        headers = {**(given.pop("headers", None) or {}), **own}
        address = self._files.encode_url(self.path)
        async with session.get(address, **{**given, "headers": headers, "timeout": limits}) as answer:
            now = self._checked(answer, begin, end)
            if state is None:
                if now.ranged:
                    await answer.read()
                else:
                    answer.close()
                return now
            if now._replace(ranged=state.ranged) != state:
                answer.close()
                raise changed(self.name, state, now)
            if not now.ranged and (begin, end) != (0, state.size):
                answer.close()
                raise RemoteError(self.name, "the server gave ranges of it, and does not any more")
            left = end - begin
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
            raise RemoteChangedError(
                self.name, f"it has changed since it was opened: it has {found[1]} bytes now", errno.ESTALE
            )
        if status not in (200, 206):
            self._refuse(status, heads)
        if heads.get("Content-Encoding", "identity").lower() != "identity":
            raise RemoteError(
                self.name,
                f"the server sends it packed ({heads['Content-Encoding']}), though it was asked not to; download the "
                "file and name the local one",
            )
        if heads.get("Content-Type", "").lower().startswith("text/html") and not self.path.lower().endswith("html"):
            raise RemoteError(
                self.name, "the server sends a web page in place of the file; give the address of the file itself"
            )
        if status == 206:
            size = checked_range(self.name, heads.get("Content-Range"), begin, end)
            return RemoteState(size, tag, modified)
        length = heads.get("Content-Length")
        if length is None:
            raise RemoteError(
                self.name, "the server tells neither ranges nor the size; download the file and name the local one"
            )
        return RemoteState(int(length), tag, modified, ranged=False)

    def _refuse(self, status: int, heads: Mapping[str, str]) -> NoReturn:
        if status in (401, 403, 407):
            raise refused(self.name, f"the server says {status}")
        if status in (404, 410):
            raise RemoteError(self.name, f"there is no such file (the server says {status})", errno.ENOENT)
        if is_passing(status):
            raise PassingError(f"the server says {status}", seconds_after(heads.get("Retry-After", "")))
        raise RemoteError(self.name, f"the server says {status}")


def _said(error: BaseException) -> str:
    return masked(str(error)) or type(error).__name__
