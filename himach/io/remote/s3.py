"""Objects of S3, asked for by boto3, which finds credentials as AWS's own tools do: `S3Transport`."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from himach.errors import UsageError
from himach.io.remote.errors import PassingError, RemoteError
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
from himach.io.remote.url import address_of, masked

__all__ = ["S3Transport"]

T = TypeVar("T")

CLIENT_SECONDS = 60.0  # for which objects share a client, whose making takes 50 ms; then credentials may be others
CONNECTIONS = 16  # of one file, for those that read ahead and those that wait
_FORM = re.compile(r"s3a?://([^/]+)/(.+?)(?:\?versionId=([^&]+))?", re.DOTALL | re.IGNORECASE)


class S3Transport(Transport):
    """Asks for an object of S3; each answer tells the object's state.

    Parameters
    ----------
    name
        ``s3://bucket/key``, or ``s3a:``; ``?versionId=`` behind it names a version.

    Raises
    ------
    ImportError
        boto3 is not installed.
    UsageError
        It is not the name of an object, or AWS's settings are wrong.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        found = _FORM.fullmatch(address_of(name))
        if found is None:
            raise UsageError(f"{name} is no file; give the URL of one: s3://bucket/key")
        self._object = {"Bucket": found[1], "Key": found[2]}
        if found[3] is not None:
            self._object["VersionId"] = found[3]
        settings = tuple(one for one in os.environ.items() if one[0].startswith("AWS_"))
        self._client = _client(f"s3://{found[1]}", os.getpid(), settings, int(time.monotonic() // CLIENT_SECONDS))

    def state(self) -> RemoteState:
        """Ask for the object's state."""
        answer = self._guarded(lambda: self._client.head_object(**self._object))
        return _state(answer, int(answer["ContentLength"]))

    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes."""
        self._guarded(lambda: self._read(begin, end, state, sink))

    def _read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        answer = self._client.get_object(**self._object, Range=f"bytes={begin}-{end - 1}")
        left = end - begin
        with answer["Body"] as body:
            now = _state(answer, checked_range(self.name, answer.get("ContentRange"), begin, end))
            if now != state:
                raise changed(self.name, state, now)
            while piece := body.read(min(left, 1 << 18)):
                sink(piece)
                left -= len(piece)
        if left:
            raise PassingError("the answer ended before its end")

    def _guarded(self, call: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError

        try:
            return call()
        except ClientError as error:
            raise self._told(error.response, str(error)) from None
        except ParamValidationError as error:
            raise RemoteError(self.name, f"it is not the name of an object: {masked(str(error))}") from None
        except BotoCoreError as error:
            if isinstance(error, NoCredentialsError) or "redential" in type(error).__name__ + str(error):
                raise refused(self.name, str(error)) from None
            raise PassingError(masked(str(error))) from None
        except (OSError, TimeoutError) as error:
            raise PassingError(masked(str(error)) or type(error).__name__) from None

    def _told(self, answer: Mapping[str, Any], said: str) -> Exception:
        """Return the error of an answer that is one."""
        code = str(answer.get("Error", {}).get("Code", ""))
        meta = answer.get("ResponseMetadata", {})
        status = int(meta.get("HTTPStatusCode", 0))
        if status == 404:
            return RemoteError(self.name, "there is no such file", errno.ENOENT)
        if status == 416:
            return changed(self.name)
        if status in (401, 403) or code in ("ExpiredToken", "InvalidToken"):
            return refused(self.name, said)
        if is_passing(status) or code in ("RequestTimeout", "SlowDown"):
            return PassingError(masked(said), seconds_after(meta.get("HTTPHeaders", {}).get("retry-after", "")))
        return RemoteError(self.name, masked(said))


@lru_cache(maxsize=4)
def _client(bucket: str, process: int, settings: tuple[tuple[str, str], ...], since: int) -> Any:
    """Return a client of S3, which signs with what AWS's tools find; where they find nothing, it does not sign."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    options: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": SILENT_SECONDS,
        "max_pool_connections": CONNECTIONS,
        "retries": {"total_max_attempts": 1},  # himach.io.remote.patience asks again
    }
    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            options["signature_version"] = UNSIGNED
        return session.client("s3", config=Config(**options))
    except (BotoCoreError, ValueError) as error:
        raise UsageError(masked(f"{bucket} cannot be read: {error}")) from None


def _state(answer: Mapping[str, Any], size: int) -> RemoteState:
    return RemoteState(size, str(answer.get("ETag", "")), str(answer.get("LastModified", "")))
