"""Bytes of a trajectory file near the reader's position: `BlockCache`, blocks of whole frames that a thread computes.

Reading and encoding overlap with delivery: while one block is read, the next ones are computed.
"""

import errno
import queue
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from himach.errors import HimachError
from himach.io.trajectories.layouts import Bytes, FileLayout
from himach.mount.stores import StoreFrames

BLOCK_BYTES = 4 << 20  # per block of whole frames, of which it has at least one
KEPT_BYTES = 24 << 20  # of computed blocks, of which at least two are kept
BLOCKS_AHEAD = 3  # computed ahead for sequential reads
HEAD = -1  # number of the block with the header
AGAIN_SECONDS = 1.0  # after which a failed frame is requested again


@dataclass(frozen=True)
class _Block:
    """Bytes of some frames or the header; errors of missing frames by their index, or the failure of all."""

    data: Bytes
    missing: Mapping[int, Exception] = field(default_factory=dict)
    failure: BaseException | None = None
    created: float = field(default_factory=time.monotonic)

    @property
    def stale(self) -> bool:
        """Whether it failed long enough ago to try again."""
        failed = self.missing or self.failure is not None
        return bool(failed) and time.monotonic() > self.created + AGAIN_SECONDS


class BlockCache:
    """Bytes of a file of one layout; `open_frames` opens its frames at the first read, and again after a failure."""

    def __init__(self, layout: FileLayout, open_frames: Callable[[], StoreFrames]) -> None:
        self._layout = layout
        self._open_frames = open_frames
        self.per_block = max(1, BLOCK_BYTES // layout.frame_bytes)
        self._max_blocks = max(2, KEPT_BYTES // (self.per_block * layout.frame_bytes))
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Future[_Block]] = OrderedDict()  # in order of their last request
        self._requests: queue.SimpleQueue[tuple[int, Future[_Block]] | None] = queue.SimpleQueue()
        self._closed: Future[Any] = Future()
        self._thread: threading.Thread | None = None  # begun by the first request
        self._last = -2
        self._frames: StoreFrames | None = None
        self._opened = 0.0

    def read(self, offset: int, size: int) -> list[Bytes]:
        """Return the bytes from `offset` on, in pieces; fewer than `size` at the end of the file."""
        layout = self._layout
        stop = min(offset + size, layout.size)
        pieces: list[Bytes] = []
        if offset < min(stop, layout.head_bytes):
            end = min(stop, layout.head_bytes)
            pieces.append(self._await(HEAD).data[offset:end])
            offset = end
        block_bytes = self.per_block * layout.frame_bytes
        while offset < stop:
            number, at = divmod(offset - layout.head_bytes, block_bytes)
            pieces.append(self._piece(number, at, min(at + stop - offset, block_bytes)))
            offset += len(pieces[-1])
        return pieces

    def close(self) -> None:
        """Close the files once the current computation ends."""
        self._closed.set_result(None)
        self._requests.put(None)

    def _piece(self, number: int, start: int, stop: int) -> Bytes:
        """Return bytes of a block; after sequential reads, request the next blocks."""
        block = self._await(number)
        if number in (self._last, self._last + 1):
            n_blocks = -(-self._layout.content.n_frames // self.per_block)
            for following in range(number + 1, min(number + 1 + min(BLOCKS_AHEAD, self._max_blocks - 1), n_blocks)):
                self._request(following)
        self._last = number
        frame_bytes = self._layout.frame_bytes
        for place, error in block.missing.items():
            if start < (place + 1) * frame_bytes and place * frame_bytes < stop:
                raise error
        return block.data[start:stop]

    def _await(self, number: int) -> _Block:
        future = self._request(number)
        futures: list[Future[Any]] = [future, self._closed]
        wait(futures, return_when=FIRST_COMPLETED)
        if not future.done():
            raise OSError("the file was closed")
        block = future.result()
        if block.failure is not None:
            raise block.failure
        return block

    def _request(self, number: int) -> Future[_Block]:
        """Return a computed or pending block."""
        with self._lock:
            future = self._blocks.get(number)
            if future is None or (future.done() and future.result().stale):
                future = self._blocks[number] = Future()
                self._requests.put((number, future))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="himach-mount", daemon=True)
                    self._thread.start()
            self._blocks.move_to_end(number)
            while len(self._blocks) > self._max_blocks:
                self._blocks.popitem(last=False)
            return future

    def _work(self) -> None:
        """Compute blocks in the order of requests, until the file is closed."""
        while (request := self._requests.get()) is not None and not self._closed.done():
            number, future = request
            try:
                block = self._compute(number)
            except BaseException as error:  # the waiting reader raises it
                block = _Block(np.empty(0, np.uint8), failure=error)
                self._shut()
            future.set_result(block)
        self._shut()

    def _compute(self, number: int) -> _Block:
        layout = self._layout
        if self._frames is None:
            self._frames, self._opened = self._open_frames(), time.monotonic()
        if number == HEAD:
            return _Block(np.frombuffer(bytearray(layout.head(*self._frames.stamps())), np.uint8))
        start = number * self.per_block
        stop = min(start + self.per_block, layout.content.n_frames)
        data = np.empty((stop - start) * layout.frame_bytes, dtype=np.uint8)
        missing: dict[int, Exception] = {}
        for frame in range(start, stop):
            try:
                layout.put(self._frames.frame(frame), data, (frame - start) * layout.frame_bytes)
            except (HimachError, OSError) as error:
                missing[frame - start] = error
            except (ArithmeticError, ValueError, struct.error) as error:  # beyond what the format can hold
                missing[frame - start] = OSError(errno.EIO, f"frame {frame} does not fit the format: {error}")
        if missing and time.monotonic() > self._opened + AGAIN_SECONDS:
            self._shut()  # reopen, as an unreachable server may be back
        return _Block(data, missing)

    def _shut(self) -> None:
        frames, self._frames = self._frames, None
        if frames is not None:
            frames.close()
