"""Requests for a remote file: `open_transport()` returns its `Transport`; `Patience` is the retry policy.

boto3 moves the bytes of S3, fsspec those of other servers; both find credentials as other tools do. fsspec's own HTTP
reads neither compare range and ETag with the request nor bound an answer in bytes and time, so `HttpTransport` takes
only the session from fsspec, and reads the answers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from himach.errors import UsageError
from himach.io.trajectories.urls.url_names import full_url, redact


class RemoteError(OSError):
    """A remote file cannot be read, after retries where they could help."""

    _himach_tried = True  # see himach.io.trajectories.file_failures

    def __init__(self, name: str, why: str, number: int = errno.EREMOTEIO) -> None:
        super().__init__(number, why, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror, self.errno)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class PassingError(Exception):
    """A request failed, and a retry may succeed. `after` is the wait that the server asks for, in seconds."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


Sink = Callable[[bytes], None]
CONNECT_SECONDS = 20.0  # timeout of connecting
SILENT_SECONDS = 30.0  # timeout between two pieces of an answer
FIRST_SECONDS = 5.0  # of retries, for a server that has not answered before
SECONDS = 30.0  # of retries, for a server that has
PAUSE = 0.2  # seconds before the second request; each further pause is three times as long
MOST_AFTER = 60.0  # cap in seconds on a server's Retry-After


class Patience:
    """Retry policy for a failing server; `first`: it has not answered before."""

    def __init__(self, name: str, first: bool = False) -> None:
        self.name, self._pause, self._requests = name, PAUSE, 0
        self._until = time.monotonic() + (FIRST_SECONDS if first else SECONDS)

    def pause(self, error: PassingError) -> float:
        """Return the seconds to the next request, at least the server's; raises RemoteError when time is up."""
        self._requests += 1
        pause, self._pause = self._pause, 3 * self._pause
        if time.monotonic() + pause > self._until:
            raise self.end(error) from None
        return max(pause, error.after)

    def end(self, error: PassingError) -> RemoteError:
        """Return the error for retries that all failed."""
        often = f", {self._requests} times in turn" * (self._requests > 1)
        return RemoteError(self.name, f"{error}{often}; try again later: what has come is kept")


class RemoteState(NamedTuple):
    """Identity of a remote file's content."""

    size: int  # in bytes
    tag: str  # ETag, or another identifier of the content from the server; empty if there is none
    modified: str  # time of the last change in the server's words; empty if unknown
    ranged: bool = True  # whether the server gives ranges; else the whole file comes at once

    def __str__(self) -> str:
        return f"{self.size} bytes, {self.tag or 'no ETag'}, {self.modified or 'no date'}"


_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_CODES = ("RequestTimeout", "SlowDown")  # of S3
_CUT = "the answer ended before its end"
#: Errors of aiohttp and boto3 that a retry does not help, by name, and their meaning.
_LASTING = {
    "ClientConnectorCertificateError": "the server's certificate is not trusted",
    "TooManyRedirects": "the server sends from one address to the next without end",
    "InvalidURL": "it, or the address that the server sends to, is no URL",
    "NonHttpUrlClientError": "it, or the address that the server sends to, is no URL",
    "ParamValidationError": "it is not the name of an object",
}


class Transport(ABC):
    """Requests for one remote file."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def state(self) -> RemoteState:
        """Ask for the file's state."""

    @abstractmethod
    def read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        """Pass bytes to `sink` as they come; raises as `state` does, and if the file has changed."""

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn any error of a server's library into one of ours."""
        try:
            yield
        except (RemoteError, PassingError):
            raise
        except Exception as error:
            raise self._classify(error) from None

    def _classify(self, error: Exception) -> Exception:
        text = redact(str(error))[:200] or "no answer in time" * isinstance(error, TimeoutError) or type(error).__name__
        kinds = [kind.__name__ for kind in type(error).__mro__]
        answer = getattr(error, "response", None)
        if isinstance(answer, Mapping):  # of S3
            code, meta = str(answer.get("Error", {}).get("Code", "")), answer.get("ResponseMetadata", {})
            status = 503 if code in _PASSING_CODES else 403 if "Token" in code else int(meta.get("HTTPStatusCode", 0))
            return self.http_error(status, redact(str(error)), meta.get("HTTPHeaders", {}))
        cause = getattr(error, "os_error", None)  # of aiohttp
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return RemoteError(self.name, f"there is no such host: {text}", errno.EHOSTUNREACH)
        if lasting := next(filter(_LASTING.get, kinds), None):
            return RemoteError(self.name, f"{_LASTING[lasting]}: {text}")
        if isinstance(error, PermissionError) or "redential" in type(error).__name__ + str(error):
            return self.http_error(403, redact(str(error)), {})
        if isinstance(error, FileNotFoundError):
            return RemoteError(self.name, "there is no such file", errno.ENOENT)
        if isinstance(error, ImportError):
            return UsageError(f"{self.name} cannot be read: {text}")
        if "ClientPayloadError" in kinds:
            return PassingError(_CUT)
        return PassingError(text if isinstance(error, OSError) else f"{type(error).__name__}: {text}")

    def http_error(self, status: int, message: str, headers: Mapping[str, str]) -> Exception:
        """Return the error for an HTTP status."""
        if status in (401, 403, 407):
            why = f"it may not be read: {message}; give a user and password, or a key, that may read it"
            return RemoteError(self.name, why, errno.EACCES)
        if status in (404, 410):
            return RemoteError(self.name, f"there is no such file ({message})", errno.ENOENT)
        if status == 416:
            return self._changed_error(message)
        if status in _PASSING:
            after = headers.get("retry-after", "")
            return PassingError(message, min(MOST_AFTER, float(after)) if re.fullmatch(r"\d{1,9}", after) else 0.0)
        return RemoteError(self.name, message)

    def check_state(self, before: RemoteState, now: RemoteState) -> None:
        """Refuse the content of another state."""
        if now != before:
            raise self._changed_error(f"it was: {before}; it is: {now}")

    def _changed_error(self, how: str) -> RemoteError:
        message = f"it has changed since it was opened ({how}); run again when nothing writes to it"
        return RemoteError(self.name, message, errno.ESTALE)

    def parse_size(self, content_range: str | None, start: int, stop: int) -> int:
        """Return the file's size by Content-Range; the range must be the requested one, cut at the file's end."""
        match = _RANGE.fullmatch(content_range or "")
        if match is None or match[1] is None:
            raise RemoteError(self.name, "the server does not tell which bytes it sends; download the file")
        first, last, size = map(int, match.groups())
        if (first, last + 1) != (start, min(stop, size)):
            message = f"bytes {start} to {stop} were asked for, and the server sends {first} to {last + 1}"
            raise RemoteError(self.name, message)
        return size


class FileSystemTransport(Transport):
    """Transport of one file by its path in a file system of fsspec, with fsspec's settings of credentials."""

    def __init__(self, name: str, file_system: Any, path: str) -> None:
        super().__init__(name)
        self._files, self._path = file_system, path

    def state(self) -> RemoteState:
        """Ask for the file's state."""
        with self._translate_errors():
            self._files.invalidate_cache()
            facts: Mapping[str, Any] = self._files.info(self._path)
        if facts.get("size") is None or facts.get("type") == "directory":
            raise RemoteError(self.name, "it is no file; give the URL of one", errno.EISDIR)
        tag = facts.get("ETag") or facts.get("etag") or facts.get("md5Hash") or facts.get("content_md5") or ""
        dates = (facts.get(name) for name in ("LastModified", "last_modified", "updated", "mtime", "modified"))
        return RemoteState(int(facts["size"]), str(tag), str(next(filter(None, dates), "")))

    def read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        with self._translate_errors():
            content = self._files.cat_file(self._path, start=start, end=stop)
        self.check_state(state, self.state())  # such file systems do not say which state the bytes belong to
        if len(content) != stop - start:
            raise PassingError(f"{len(content)} bytes came, and {stop - start} were asked for")
        sink(content)


class HttpTransport(FileSystemTransport):
    """Transport over HTTP by persistent connections; refuses bytes that were not asked for."""

    def state(self) -> RemoteState:
        """Ask for the first byte: signed URLs allow only GET, and some servers give the size only this way."""
        return self._ask(0, 1, None, lambda piece: None)

    def read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        self._ask(start, stop, state, sink)

    def _ask(self, *request: Any) -> RemoteState:
        from fsspec.asyn import sync

        with self._translate_errors():
            state: RemoteState = sync(self._files.loop, self._request, *request)
            return state

    async def _request(self, start: int, stop: int, state: RemoteState | None, sink: Sink) -> RemoteState:
        import aiohttp

        session = await self._files.set_session()
        options = dict(self._files.kwargs)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        options |= {"headers": {**(options.get("headers") or {}), **headers}, "timeout": limits}
        async with (
            asyncio.timeout(SILENT_SECONDS) as bound,
            session.get(self._files.encode_url(self._path), **options) as answer,
        ):
            now = self._check_answer(answer, start, stop)
            if state is not None:
                self.check_state(state, now._replace(ranged=state.ranged))
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
                raise PassingError(_CUT)
            return now

    def _check_answer(self, answer: Any, start: int, stop: int) -> RemoteState:
        """Return the state that an answer gives; refuse an answer with other content."""
        status, headers = answer.status, answer.headers
        tag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        if status == 416 and start == 0 and headers.get("Content-Range") == "bytes */0":
            return RemoteState(0, tag, modified)
        if status not in (200, 206):
            raise self.http_error(status, f"the server says {status}", headers)
        packed = headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            message = f"the server sends it packed ({packed}), though it was asked not to"
            raise RemoteError(self.name, f"{message}; download the file and name the local one")
        if headers.get("Content-Type", "").lower().startswith("text/html") and not self._path.lower().endswith("html"):
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


CLIENT_SECONDS = 60.0  # objects share a client, which takes 50 ms to make, for so long: credentials may change
CONNECTIONS = 16  # per client, for readahead and waiting readers
_OBJECT = re.compile(r"s3a?://([^/]+)/(.+?)(?:\?versionId=([^&]+))?", re.DOTALL | re.IGNORECASE)


class S3Transport(Transport):
    """Requests for an object of S3; each answer has the object's state."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        parts = _OBJECT.fullmatch(full_url(name))
        if parts is None:
            raise UsageError(f"{name} is no file; give the URL of one: s3://bucket/key")
        self._object = {"Bucket": parts[1], "Key": parts[2]}
        if parts[3] is not None:
            self._object["VersionId"] = parts[3]
        settings = tuple(item for item in os.environ.items() if item[0].startswith("AWS_"))
        self._client = _client(os.getpid(), settings, int(time.monotonic() // CLIENT_SECONDS))

    def state(self) -> RemoteState:
        """Ask for the object's state."""
        with self._translate_errors():
            answer = self._client.head_object(**self._object)
            return _object_state(answer, int(answer["ContentLength"]))

    def read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        with self._translate_errors():
            answer = self._client.get_object(**self._object, Range=f"bytes={start}-{stop - 1}")
            remaining = stop - start
            with answer["Body"] as body:
                self.check_state(state, _object_state(answer, self.parse_size(answer.get("ContentRange"), start, stop)))
                while piece := body.read(min(remaining, 1 << 18)):
                    sink(piece)
                    remaining -= len(piece)
            if remaining:
                raise PassingError(_CUT)


@lru_cache(maxsize=4)
def _client(process: int, settings: tuple[tuple[str, str], ...], since: int) -> Any:
    """Return an S3 client that signs with the credentials that AWS's tools find, or not at all without any."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    options: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": SILENT_SECONDS,
        "max_pool_connections": CONNECTIONS,
        "retries": {"total_max_attempts": 1},  # `Patience` retries
    }
    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            options["signature_version"] = UNSIGNED
        return session.client("s3", config=Config(**options))
    except BotoCoreError as error:
        raise ValueError(error) from None


def _object_state(answer: Mapping[str, Any], size: int) -> RemoteState:
    return RemoteState(size, str(answer.get("ETag", "")), str(answer.get("LastModified", "")))


def open_transport(name: str) -> Transport:
    """Return the transport for a file's name."""
    if "::" in name:
        raise UsageError(f"{name}: a URL of URLs is not read; himach keeps what it reads by itself: give the last one")
    scheme = name.partition(":")[0]
    extra = "s3" if scheme in ("s3", "s3a") else "remote"
    try:
        if extra == "s3":
            return S3Transport(name)
        from fsspec.config import conf
        from fsspec.core import url_to_fs

        if scheme not in ("http", "https"):
            return FileSystemTransport(name, *url_to_fs(full_url(name)))
        import aiohttp  # noqa: F401  (else its lack is told when a file is read)

        # Take proxies and passwords from where other tools find them.
        options = {"trust_env": True, **conf.get(scheme, {}).get("client_kwargs", {})}
        return HttpTransport(name, *url_to_fs(full_url(name), client_kwargs=options))
    except ImportError as error:
        raise UsageError(
            f"{name} is read by packages that are not installed ({error}): pip install 'himach[{extra}]'"
        ) from None
    except ValueError as error:
        raise UsageError(redact(f"{name} cannot be read: {error}")) from None
