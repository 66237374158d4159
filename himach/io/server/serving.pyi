from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.store.bodhi import StoreError

COUNTERS: tuple[str, ...]
PLACE: np.dtype[np.void]
NUMBERS_AT_ONCE: int

class ServerUnreachableError(StoreError): ...
class ServerProtocolError(StoreError): ...
class ServerRefusedError(StoreError): ...

def hmac_sha256(key: bytes, data: bytes) -> bytes: ...

class ServerHandle:
    def __init__(
        self,
        directory: bytes,
        listener: int,
        allowed: Sequence[int] = ...,
        serialize_reads: bool = ...,
        max_connections: int = ...,
        message_ms: int = ...,
        idle_ms: int = ...,
        batch_ms: int = ...,
        max_frame: int = ...,
        quota: int = ...,
    ) -> None: ...
    @property
    def wake(self) -> int: ...
    def run(self) -> bool: ...
    def admit(self, fd: int) -> None: ...
    def close(self) -> None: ...

class LinkHandle:
    native_count: int
    alien_count: int
    identity: bytes
    def __init__(self, address: bytes, owner: int, timeout_ms: int) -> None: ...
    def open(self, name: str, generation: bytes) -> None: ...
    def numbers(self, kind: int, start: int) -> npt.NDArray[np.uint64]: ...
    def have(self, numbers: npt.ArrayLike) -> npt.NDArray[np.uint8]: ...
    def places(self, numbers: npt.ArrayLike) -> tuple[npt.NDArray[np.void], list[int]]: ...
    def done(self) -> None: ...
    def blocks(
        self,
        head: memoryview,
        segment: int,
        offset: int,
        number: int,
        fields: int = 0,
        atoms: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.uint64] | None: ...
    def unpack(
        self,
        record: memoryview,
        segment: int,
        offset: int,
        number: int,
        fields: int = 0,
        atoms: npt.NDArray[np.int64] | None = None,
        pieces: npt.NDArray[np.uint64] | None = None,
    ) -> tuple[Any, ...] | None: ...
    def counters(self) -> dict[str, int]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
