"""Requests for a remote file: `open_transport()` returns its `Transport`.

boto3 moves the bytes of S3, fsspec those of other servers; both find credentials as other tools do.
"""

import errno
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from himach.errors import UsageError
from himach.io.trajectories.file_failures import retry
from himach.io.trajectories.urls.url_names import full_url, redact

T = TypeVar("T")

CONNECT_SECONDS, SILENT_SECONDS, TOTAL_SECONDS = 20.0, 30.0, 300.0  # timeouts of a request
PAUSES = (0.2, 1.0, 5.0, 20.0)  # seconds before each further request for bytes
REFUSED, MISSING, CHANGED, WAITS = (401, 403, 407), (404, 410), (412, 416), (408, 425, 429)  # statuses of HTTP


class RemoteError(OSError):
    """A remote file cannot be read; a retry may help against EREMOTEIO alone."""

    def __init__(self, name: str, why: str, number: int = errno.EREMOTEIO) -> None:
        super().__init__(number, why, name)
        self._himach_tried = number != errno.EREMOTEIO  # see himach.io.trajectories.file_failures

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror, self.errno)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class RemoteState(NamedTuple):
    """Identity of a remote file's content."""

    size: int  # in bytes
    tag: str  # ETag, or another identifier of the content from the server; empty if there is none
    modified: str  # time of the last change in the server's words; empty if unknown


class Transport(ABC):
    """Requests for one remote file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def state(self) -> RemoteState:
        """Ask for the file's state."""
        state = retry(partial(self._translate, self._request_state))
        if not (state.tag or state.modified):
            raise RemoteError(
                self.name,
                "its server sends neither its ETag nor its date, so a change of the file would go unnoticed; "
                "download it and name the local file",
                errno.ENOTSUP,
            )
        return state

    def read(self, start: int, stop: int, state: RemoteState) -> bytes:
        """Return some bytes; raises RemoteError if the file is not in this state."""

        def request() -> bytes:
            content = self._request(start, stop, state)
            if len(content) != stop - start:
                self._check_state(state)
                raise RemoteError(self.name, f"{len(content)} bytes came, and {stop - start} were requested")
            return content

        return retry(partial(self._translate, request), pauses=PAUSES)

    @abstractmethod
    def _request_state(self) -> RemoteState: ...

    @abstractmethod
    def _request(self, start: int, stop: int, state: RemoteState) -> bytes:
        """Ask for some bytes of the file in a state."""

    def _check_state(self, state: RemoteState) -> None:
        if self._request_state() != state:
            raise self._http_error(CHANGED[0], "another size, ETag or date")

    def _translate(self, call: Callable[[], T]) -> T:
        """Turn any error of a server's library into one of ours."""
        try:
            return call()
        except (RemoteError, UsageError):
            raise
        except Exception as error:
            cause = error.__cause__ or error
            answer = getattr(cause, "response", None)  # of boto3
            meta = answer.get("ResponseMetadata", {}) if isinstance(answer, Mapping) else {}
            status = int(meta.get("HTTPStatusCode", 0) or getattr(cause, "status", 0) or 0)
            text = redact(str(cause))[:200] or type(cause).__name__
            if status and not meta:  # aiohttp's text has the URL
                text = f"the server says {status}"
            if isinstance(cause, ImportError):
                raise UsageError(f"{self.name} cannot be read: {text}") from None
            if isinstance(cause, PermissionError) or "redential" in type(cause).__name__:
                status = REFUSED[0]
            elif isinstance(cause, FileNotFoundError):
                status = MISSING[0]
            raise self._http_error(status, text) from None

    def _http_error(self, status: int, text: str) -> RemoteError:
        """Return the error for an HTTP status; 0 if the server gave none."""
        if status in REFUSED:
            why = f"it may not be read: {text}; give a user and password, or a key, that may read it"
            return RemoteError(self.name, why, errno.EACCES)
        if status in MISSING:
            return RemoteError(self.name, f"there is no such file ({text})", errno.ENOENT)
        if status in CHANGED:
            why = f"it has changed since it was opened ({text}); run again when nothing writes to it"
            return RemoteError(self.name, why, errno.ESTALE)
        if 300 <= status < 500 and status not in WAITS:
            return RemoteError(self.name, text, errno.EPROTO)
        return RemoteError(self.name, f"{text}; try again later: what has come is kept")


class FileSystemTransport(Transport):
    """Transport of one file by its path in a file system of fsspec, with fsspec's settings of credentials."""

    def __init__(self, name: str, file_system: Any, path: str) -> None:
        super().__init__(name)
        self._files, self._path = file_system, path
        self._is_http = name.startswith(("http://", "https://"))

    def _request_state(self) -> RemoteState:
        self._files.invalidate_cache()
        facts: Mapping[str, Any] = self._files.info(self._path)
        if facts.get("mimetype") == "text/html" and not self._path.lower().endswith("html"):
            why = "the server sends a web page in place of the file; give the address of the file itself"
            raise RemoteError(self.name, why, errno.EPROTO)
        if facts.get("type") == "directory":
            raise RemoteError(self.name, "it is no file; give the URL of one", errno.EISDIR)
        if facts.get("size") is None:
            why = "the server does not tell its size, or packs it; download the file and name the local one"
            raise RemoteError(self.name, why, errno.EPROTO)
        tags = (facts.get(name) for name in ("ETag", "etag", "md5Hash", "content_md5"))
        names = ("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "modified")
        dates = (facts.get(name) for name in names)
        return RemoteState(int(facts["size"]), *(str(next(filter(None, values), "")) for values in (tags, dates)))

    def _request(self, start: int, stop: int, state: RemoteState) -> bytes:
        headers = {**getattr(self._files, "kwargs", {}).get("headers", {}), "Accept-Encoding": "identity"}
        if is_matched := self._is_http and state.tag.startswith('"'):  # else the tag is weak
            headers["If-Match"] = state.tag
        answer: dict[str, str] = {}
        options = {"size": state.size, "headers": headers, "trace_request_ctx": answer} if self._is_http else {}
        with self._files.open(self._path, "rb", cache_type="none", **options) as file:
            file.seek(start)
            try:
                content = bytes(file.read(stop - start))
            except ValueError:
                why = "the server does not give parts of it; download the file and name the local one"
                raise RemoteError(self.name, why, errno.ENOTSUP) from None
        if not is_matched or answer.get("tag", state.tag) != state.tag:  # not all servers look at If-Match
            self._check_state(state)
        return content


CLIENT_SECONDS = 60.0  # objects share a client, which takes 50 ms to make, for so long: credentials may change
CONNECTIONS = 16  # per client, for readahead and waiting readers
_OBJECT = re.compile(r"s3a?://([^/]+)/(.+?)(?:\?versionId=([^&]+))?", re.DOTALL | re.IGNORECASE)


class S3Transport(Transport):
    """Requests for an object of S3."""

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

    def _request_state(self) -> RemoteState:
        answer = self._client.head_object(**self._object)
        return RemoteState(int(answer["ContentLength"]), answer.get("ETag", ""), str(answer.get("LastModified", "")))

    def _request(self, start: int, stop: int, state: RemoteState) -> bytes:
        answer = self._client.get_object(**self._object, Range=f"bytes={start}-{stop - 1}", IfMatch=state.tag)
        return bytes(answer["Body"].read())


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
        "retries": {"total_max_attempts": 1},  # `Transport` retries
    }
    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            options["signature_version"] = UNSIGNED
        return session.client("s3", config=Config(**options))
    except BotoCoreError as error:
        raise ValueError(error) from None


async def _note_tag(session: Any, context: Any, answered: Any) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx["tag"] = answered.response.headers.get("ETag", "")


@lru_cache(maxsize=1)
def _trace() -> Any:
    """Return a trace that notes the ETag of each answer; always the same, as fsspec shares clients of equal options."""
    from aiohttp import TraceConfig

    trace = TraceConfig()
    trace.on_request_end.append(_note_tag)
    return trace


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
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(TOTAL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        # Take proxies and passwords from where other tools find them.
        options = {"trust_env": True, "timeout": timeout, "trace_configs": [_trace()]}
        options |= conf.get(scheme, {}).get("client_kwargs", {})
        return FileSystemTransport(name, *url_to_fs(full_url(name), client_kwargs=options))
    except ImportError as error:
        raise UsageError(
            f"{name} is read by packages that are not installed ({error}): pip install 'himach[{extra}]'"
        ) from None
    except ValueError as error:
        raise UsageError(redact(f"{name} cannot be read: {error}")) from None
