"""Requests for a remote file: `Transport`, a base with a subclass per kind of server, and `Patience`, the retry policy.

`S3Transport` reads objects of S3 by boto3, which finds credentials as AWS's own tools do.
"""

from __future__ import annotations

import errno
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from himach.errors import UsageError
from himach.io.trajectories.urls.names import full_url, redact


class RemoteError(OSError):
    """A remote file cannot be read, after retries where they could help."""

    _himach_tried = True  # see himach.io.trajectories.failures

    def __init__(self, name: str, why: str, number: int = errno.EREMOTEIO) -> None:
        super().__init__(number, why, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror, self.errno)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class RemoteChangedError(RemoteError):
    """A remote file has changed since it was opened."""


class PassingError(Exception):
    """A request failed, and a retry may succeed. `after` is the wait that the server asks for, in seconds."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


T = TypeVar("T")
Sink = Callable[[bytes], None]
CONNECT_SECONDS = 20.0  # timeout of connecting
SILENT_SECONDS = 30.0  # timeout between two pieces of an answer
FIRST_SECONDS = 5.0  # of retries, for a server that has not answered before
SECONDS = 30.0  # of retries, for a server that has
PAUSE = 0.2  # seconds before the second request; each further pause is three times as long
MOST_AFTER = 60.0  # cap in seconds on a server's Retry-After
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


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

    def translate_error(self, error: Exception) -> Exception | None:
        """Return the error that stands for one of the server's library; None if unknown."""
        return None

    def guard(self, call: Callable[[], T]) -> T:
        """Return the result of a request; turn any error of the server's library into one of ours."""
        try:
            return call()
        except (RemoteError, PassingError):
            raise
        except Exception as error:
            raise (self.translate_error(error) or self._classify_error(error)) from None

    def _classify_error(self, error: Exception) -> Exception:
        text = redact(str(error))[:200] or "no answer in time" * isinstance(error, TimeoutError) or type(error).__name__
        if isinstance(error, FileNotFoundError):
            return self.absent_error()
        if isinstance(error, PermissionError) or "redential" in type(error).__name__ + str(error):
            return self.refused_error(str(error))
        if isinstance(error, ImportError):
            return UsageError(f"{self.name} cannot be read: {text}")
        return PassingError(text if isinstance(error, OSError) else f"{type(error).__name__}: {text}")

    def absent_error(self, why: str = "") -> RemoteError:
        """Return the error for a missing file."""
        return RemoteError(self.name, f"there is no such file{why}", errno.ENOENT)

    def refused_error(self, why: str) -> RemoteError:
        """Return the error for a refused request."""
        message = f"it may not be read: {redact(why)}; give a user and password, or a key, that may read it"
        return RemoteError(self.name, message, errno.EACCES)

    def changed_error(self, before: RemoteState | None = None, now: RemoteState | None = None) -> RemoteChangedError:
        """Return the error for a changed file."""
        how = "" if before is None else f" (it was: {before}; it is: {now})"
        message = f"it has changed since it was opened{how}; run again when nothing writes to it"
        return RemoteChangedError(self.name, message, errno.ESTALE)

    def http_error(self, status: int, message: str, headers: Mapping[str, str]) -> Exception:
        """Return the error for an HTTP status."""
        after = headers.get("retry-after", "")
        if status in (401, 403, 407):
            return self.refused_error(message)
        if status in (404, 410):
            return self.absent_error(f" ({message})")
        if status in _PASSING:
            return PassingError(message, min(MOST_AFTER, float(after)) if re.fullmatch(r"\d{1,9}", after) else 0.0)
        return RemoteError(self.name, message)

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


CLIENT_SECONDS = 60.0  # objects share a client, which takes 50 ms to make, for so long: credentials may change
CONNECTIONS = 16  # per client, for readahead and waiting readers
PASSING = ("RequestTimeout", "SlowDown")
_FORM = re.compile(r"s3a?://([^/]+)/(.+?)(?:\?versionId=([^&]+))?", re.DOTALL | re.IGNORECASE)


class S3Transport(Transport):
    """Requests for an object of S3; each answer has the object's state."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        parts = _FORM.fullmatch(full_url(name))
        if parts is None:
            raise UsageError(f"{name} is no file; give the URL of one: s3://bucket/key")
        self._object = {"Bucket": parts[1], "Key": parts[2]}
        if parts[3] is not None:
            self._object["VersionId"] = parts[3]
        settings = tuple(item for item in os.environ.items() if item[0].startswith("AWS_"))
        self._client = _client(f"s3://{parts[1]}", os.getpid(), settings, int(time.monotonic() // CLIENT_SECONDS))

    def state(self) -> RemoteState:
        """Ask for the object's state."""
        answer = self.guard(lambda: self._client.head_object(**self._object))
        return _state(answer, int(answer["ContentLength"]))

    def read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        self.guard(lambda: self._read(start, stop, state, sink))

    def _read(self, start: int, stop: int, state: RemoteState, sink: Sink) -> None:
        answer = self._client.get_object(**self._object, Range=f"bytes={start}-{stop - 1}")
        remaining = stop - start
        with answer["Body"] as body:
            now = _state(answer, self.parse_size(answer.get("ContentRange"), start, stop))
            if now != state:
                raise self.changed_error(state, now)
            while piece := body.read(min(remaining, 1 << 18)):
                sink(piece)
                remaining -= len(piece)
        if remaining:
            raise PassingError("the answer ended before its end")

    def translate_error(self, error: Exception) -> Exception | None:
        """Return the error that stands for one of boto3."""
        from botocore.exceptions import ClientError, ParamValidationError

        if isinstance(error, ParamValidationError):
            return RemoteError(self.name, f"it is not the name of an object: {redact(str(error))}")
        if not isinstance(error, ClientError):
            return None
        message, meta = redact(str(error)), error.response.get("ResponseMetadata", {})
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(meta.get("HTTPStatusCode", 0))
        if status == 416:
            return self.changed_error()
        if code in ("ExpiredToken", "InvalidToken"):
            return self.refused_error(message)
        return self.http_error(503 if code in PASSING else status, message, meta.get("HTTPHeaders", {}))


@lru_cache(maxsize=4)
def _client(bucket: str, process: int, settings: tuple[tuple[str, str], ...], since: int) -> Any:
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
    except (BotoCoreError, ValueError) as error:
        raise UsageError(redact(f"{bucket} cannot be read: {error}")) from None


def _state(answer: Mapping[str, Any], size: int) -> RemoteState:
    return RemoteState(size, str(answer.get("ETag", "")), str(answer.get("LastModified", "")))
