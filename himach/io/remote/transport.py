"""Requests for a file's state and for ranges of its bytes, by fsspec: `Transport`; `HttpTransport` checks each answer.

What fsspec's file systems and the tools of AWS find of credentials, proxies and certificates holds here, too.
"""

from __future__ import annotations

import email.utils
import errno
import re
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, NoReturn

from himach.errors import UsageError
from himach.io.remote.errors import PassingError, RemoteChangedError, RemoteError
from himach.io.remote.url import address_of, masked

__all__ = ["RemoteState", "Transport", "transport_of"]

Sink = Callable[[bytes], None]

CONNECT_SECONDS = 20.0  # for a server to answer at all
SILENT_SECONDS = 30.0  # between two pieces of an answer
MOST_AFTER = 60.0  # seconds that a server's wish to be left alone is followed
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class RemoteState(NamedTuple):
    """What tells the content of a file elsewhere from another one.

    Attributes
    ----------
    size
        Bytes in it.
    tag
        Its ETag, or another word of the server's for its content; empty where there is none.
    modified
        When it was changed last, as the server says it; empty where it does not.
    ranged
        Whether the server gives ranges of it; else all of it comes at once.
    """

    size: int
    tag: str
    modified: str
    ranged: bool = True

    def __str__(self) -> str:
        return f"{self.size} bytes, {self.tag or 'no ETag'}, {self.modified or 'no date'}"


class Transport:
    """Asks for one file by a file system of fsspec.

    Parameters
    ----------
    name
        Of the file.
    file_system, path
        Of fsspec.
    """

    def __init__(self, name: str, file_system: Any, path: str) -> None:
        self.name, self.path = name, path
        self._files = file_system

    def state(self) -> RemoteState:
        """Ask for the file's state.

        Raises
        ------
        PassingError
            The request failed, and another one may not.
        RemoteError
            There is no such file, or it may not be read.
        """
        facts = self._guarded(lambda: self._files.info(self.path, **self._fresh()))
        if facts.get("size") is None or facts.get("type") == "directory":
            raise RemoteError(self.name, "it is no file; give the URL of one", errno.EISDIR)
        tag = facts.get("ETag") or facts.get("etag") or facts.get("md5Hash") or facts.get("content_md5") or ""
        dates = (facts.get(name) for name in ("LastModified", "last_modified", "updated", "mtime", "modified"))
        return RemoteState(int(facts["size"]), str(tag), str(next(filter(None, dates), "")))

    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes, and hand them on as they come; raises as `state` does, and if the file has changed."""
        content = self._guarded(lambda: self._files.cat_file(self.path, start=begin, end=end))
        now = self.state()  # such file systems do not tell what state their bytes are of
        if now != state:
            raise changed(self.name, state, now)
        if len(content) != end - begin:
            raise PassingError(f"{len(content)} bytes came, and {end - begin} were asked for")
        sink(content)

    def _fresh(self) -> Mapping[str, Any]:
        self._files.invalidate_cache()
        return {}

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


class S3Transport(Transport):
    """Asks for an object of S3; each answer tells the object's state."""

    def state(self) -> RemoteState:
        """Ask for the object's state."""
        bucket, key, version = self._files.split_path(self.path)
        answer = self._guarded(lambda: self._call("head_object", bucket, key, version))
        return _object_state(answer, int(answer["ContentLength"]))

    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        bucket, key, version = self._files.split_path(self.path)
        self._guarded(lambda: self._run(self._read(bucket, key, version, begin, end, state, sink)))

    async def _read(
        self, bucket: str, key: str, version: str | None, begin: int, end: int, state: RemoteState, sink: Sink
    ) -> None:
        import asyncio

        answer = await self._files._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={begin}-{end - 1}", **_version(version)
        )
        async with answer["Body"] as body:
            _check_range(self.name, answer.get("ContentRange"), begin, end)
            now = _object_state(answer, int(answer["ContentRange"].rpartition("/")[2]))
            if now != state:
                raise changed(self.name, state, now)
            while piece := await asyncio.wait_for(body.read(1 << 18), SILENT_SECONDS):
                sink(piece)

    def _call(self, what: str, bucket: str, key: str, version: str | None) -> Any:
        return self._files.call_s3(what, Bucket=bucket, Key=key, **_version(version))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        from fsspec.asyn import sync

        sync(self._files.loop, lambda: work)


class HttpTransport(Transport):
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
        if status == 416 and (found := _RANGE.fullmatch(heads.get("Content-Range", ""))) and found[1] is None:
            if begin == 0 and int(found[3]) == 0:
                return RemoteState(0, tag, modified)
            raise RemoteChangedError(
                self.name, f"it has changed since it was opened: it has {found[3]} bytes now", errno.ESTALE
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
            size = _check_range(self.name, heads.get("Content-Range"), begin, end)
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
        if status in _PASSING:
            raise PassingError(f"the server says {status}", _after(heads.get("Retry-After", "")))
        raise RemoteError(self.name, f"the server says {status}")


def transport_of(name: str) -> Transport:
    """Return what asks for the file of a name.

    Raises
    ------
    UsageError
        A package that this takes is not installed, or there is no such kind of URL.
    """
    scheme = name.partition(":")[0]
    extra = "s3" if scheme in ("s3", "s3a") else "remote"
    if "::" in name:
        raise UsageError(f"{name}: a URL of URLs is not read; himach keeps what it reads by itself: give the last one")
    try:
        from fsspec.core import url_to_fs

        if scheme in ("http", "https"):
            import aiohttp  # noqa: F401  (else its lack is told when a file is read)

            files, path = url_to_fs(address_of(name), **_trusting(scheme))
            return HttpTransport(name, files, path)
        files, path = url_to_fs(address_of(name))
    except ImportError as error:
        raise UsageError(
            f"{name} is read by packages that are not installed ({error}): pip install 'himach[{extra}]'"
        ) from None
    except ValueError as error:
        raise UsageError(masked(f"{name} cannot be read: {error}")) from None
    return (S3Transport if extra == "s3" else Transport)(name, files, path)


def _trusting(scheme: str) -> dict[str, Any]:
    """Return options by which proxies and passwords are found where other tools find them."""
    from fsspec.config import conf

    return {"client_kwargs": {"trust_env": True, **conf.get(scheme, {}).get("client_kwargs", {})}}


def changed(name: str, before: RemoteState, now: RemoteState) -> RemoteChangedError:
    """Return the error of a file that is another one."""
    return RemoteChangedError(
        name,
        f"it has changed since it was opened (it was: {before}; it is: {now}); run again when nothing writes to it",
        errno.ESTALE,
    )


def refused(name: str, why: str) -> RemoteError:
    """Return the error of a file that may not be read."""
    return RemoteError(
        name, f"it may not be read: {masked(why)}; give a user and password, or a key, that may read it", errno.EACCES
    )


def _check_range(name: str, said: str | None, begin: int, end: int) -> int:
    """Return the size of the file, of an answer with the range that was asked for; what of it there is, at most."""
    found = _RANGE.fullmatch(said or "")
    if found is None or found[1] is None:
        raise RemoteError(name, "the server does not tell which bytes it sends; download the file")
    first, last, size = map(int, found.groups())
    if (first, last + 1) != (begin, min(end, size)):
        raise RemoteError(name, f"bytes {begin} to {end} were asked for, and the server sends {first} to {last + 1}")
    return size


def _object_state(answer: Mapping[str, Any], size: int) -> RemoteState:
    return RemoteState(size, str(answer.get("ETag", "")), str(answer.get("LastModified", "")))


def _version(version: str | None) -> dict[str, str]:
    return {} if version is None else {"VersionId": version}


def _after(text: str) -> float:
    """Return the seconds of a Retry-After."""
    if text.isdigit():
        return min(MOST_AFTER, float(text))
    try:
        then = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return 0.0
    import datetime

    return min(MOST_AFTER, max(0.0, (then - datetime.datetime.now(datetime.UTC)).total_seconds()))


def _said(error: BaseException) -> str:
    return masked(str(error)) or type(error).__name__
