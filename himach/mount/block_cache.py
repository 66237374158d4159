"""The bytes of a trajectory file around where it is read: `BlockCache`, blocks of whole frames that a thread computes.

Frames are read, encoded and handed out at the same time: while one block is taken, the next ones are computed.
"""

from __future__ import annotations

import errno
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from himach.errors import HimachError
from himach.formats.layout import Bytes, FileLayout
from himach.frame import RawFrame
from himach.mount.datasets import Frames

__all__ = ["BlockCache"]

BLOCK_BYTES = 4 << 20  # of whole frames, one at least
KEPT_BYTES = 24 << 20  # of blocks that were computed, and two blocks at least
BLOCKS_AHEAD = 3  # blocks, where blocks were asked for in order
HEAD = -1  # in place of a block's number
IDLE_SECONDS = 10.0  # after which the thread ends, files close, and nothing is kept
AGAIN_SECONDS = 1.0  # after which a frame that could not be had is asked for again


@dataclass(frozen=True)
class _Block:
    """Bytes of some frames, or a head; why those cannot be had that cannot, by their place; or why none can."""

    data: Bytes
    layout: FileLayout
    missing: Mapping[int, Exception] = field(default_factory=dict)
    failure: BaseException | None = None
    made: float = field(default_factory=time.monotonic)

    @property
    def stale(self) -> bool:
        """Whether it is worth trying again."""
        failed = self.missing or self.failure is not None
        return bool(failed) and time.monotonic() > self.made + AGAIN_SECONDS


class BlockCache:
    """The bytes of one open file.

    Parameters
    ----------
    layout
        Of the file.
    open_frames
        Opens what frames are read from, at the first read; again after a failure.
    """

    def __init__(self, layout: FileLayout, open_frames: Callable[[], Frames]) -> None:
        self._layout = layout
        self._open_frames = open_frames
        self.per_block = max(1, BLOCK_BYTES // layout.frame_bytes)
        block_bytes = self.per_block * layout.frame_bytes
        self._most = max(2, KEPT_BYTES // block_bytes)
        self._ahead = min(BLOCKS_AHEAD, self._most - 1)
        self._changed = threading.Condition()
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        self._wanted: list[int] = []  # asked for and awaited
        self._planned = range(0)  # to be computed ahead
        self._last = -2
        self._working = False
        self._closed = False
        self._frames: Frames | None = None
        self._of = layout
        self._opened = 0.0
        self._reading: tuple[int, Iterator[RawFrame]] = -1, iter(())

    def read(self, offset: int, size: int) -> list[Bytes]:
        """Return the bytes from `offset` on, in pieces; fewer than `size` at the end of the file.

        Of a file that grows meanwhile, there are as many frames as its head tells of, if that is among the bytes.

        Raises
        ------
        HimachError, OSError
            A frame among them cannot be had.
        """
        layout = self._layout
        stop = min(offset + size, layout.size)
        pieces: list[Bytes] = []
        if offset < min(stop, layout.head_bytes):
            head = self._await(HEAD)
            end, stop = min(stop, layout.head_bytes), min(offset + size, head.layout.size)
            pieces.append(head.data[offset:end])
            offset = end
        block_bytes = self.per_block * layout.frame_bytes
        while offset < stop:
            number, at = divmod(offset - layout.head_bytes, block_bytes)
            piece = self._piece(number, at, min(at + stop - offset, block_bytes))
            if not len(piece):
                break
            pieces.append(piece)
            offset += len(piece)
        return pieces

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for bytes."""
        return bool(self._wanted)

    def grow(self, layout: FileLayout) -> None:
        """Take over the layout of the same file with more frames."""
        with self._changed:
            last = self._layout.content.n_frames // self.per_block
            self._layout = layout
            for number in (HEAD, last):
                self._blocks.pop(number, None)
            if self._wanted:
                self._start()

    def close(self) -> None:
        """Forget all blocks, and close the files as soon as nothing is computed any more."""
        with self._changed:
            self._closed = True
            self._planned = range(0)
            self._blocks.clear()
            self._changed.notify_all()

    def _piece(self, number: int, begin: int, end: int) -> Bytes:
        """Return bytes of a block, and have those that come next computed if this one comes next."""
        block = self._await(number)
        with self._changed:
            if number in (self._last, self._last + 1):
                n_blocks = -(-self._layout.content.n_frames // self.per_block)
                self._planned = range(number + 1, min(number + 1 + self._ahead, n_blocks))
                self._start()
            self._last = number
        frame_bytes = self._layout.frame_bytes
        for place, error in block.missing.items():
            if begin < (place + 1) * frame_bytes and place * frame_bytes < end:
                raise error
        return block.data[begin:end]

    def _await(self, number: int) -> _Block:
        with self._changed:
            block = self._blocks.get(number)
            if block is not None and block.stale and number not in self._wanted:
                del self._blocks[number]
            if number not in self._blocks:
                self._wanted.append(number)
                self._start()
                try:
                    self._changed.wait_for(lambda: number in self._blocks or self._closed)
                finally:
                    self._wanted.remove(number)
            block = self._blocks.get(number)
            if block is None:
                raise OSError("the file was closed")
            self._blocks.move_to_end(number)
        if block.failure is not None:
            raise block.failure
        return block

    def _start(self) -> None:
        """Have the thread look for work; it is started if there is none."""
        if not self._working:
            self._working = True
            threading.Thread(target=self._work, name="himach-mount", daemon=True).start()
        self._changed.notify_all()

    def _next(self) -> int | None:
        """Return what is to be computed next; None if there is nothing to do."""
        missing = (number for number in (*self._wanted, *self._planned) if number not in self._blocks)
        return next(missing, None)

    def _work(self) -> None:
        while (number := self._wait()) is not None:
            layout = self._layout
            try:
                found = self._compute(number, layout)
            except BaseException as error:  # whoever waits for it raises it
                found = _Block(np.empty(0, np.uint8), layout, failure=error)
                self._shut()
            with self._changed:
                if layout is self._layout:
                    self._keep(number, found)
                self._changed.notify_all()

    def _wait(self) -> int | None:
        """Wait for something to do; None ends the thread."""
        with self._changed:
            while (number := self._next()) is None:
                if self._closed or (not self._changed.wait(IDLE_SECONDS) and self._next() is None):
                    self._shut()
                    if not self._wanted:
                        self._blocks.clear()  # the kernel keeps what was read
                    self._working = False
                    return None
            return number

    def _keep(self, number: int, found: _Block) -> None:
        self._blocks[number] = found
        while len(self._blocks) > self._most:
            oldest = next((one for one in self._blocks if one not in self._wanted and one != number), None)
            if oldest is None:
                break
            del self._blocks[oldest]

    def _compute(self, number: int, layout: FileLayout) -> _Block:
        n_frames = layout.content.n_frames
        if self._frames is not None and self._of is not layout:
            self._shut()
        if self._frames is None:
            self._frames = self._open_frames()
            self._of = layout
            self._opened = time.monotonic()
        if number == HEAD:
            self._reading = -1, iter(())
            return _Block(np.frombuffer(bytearray(layout.head(*self._frames.stamps())), np.uint8), layout)
        start = number * self.per_block
        stop = min(start + self.per_block, n_frames)
        block = np.empty((stop - start) * layout.frame_bytes, dtype=np.uint8)
        missing: dict[int, Exception] = {}
        for frame in range(start, stop):
            try:
                layout.put(self._frame(self._frames, frame, n_frames), block, (frame - start) * layout.frame_bytes)
            except (HimachError, OSError) as error:
                missing[frame - start] = error
            except (ArithmeticError, ValueError, struct.error) as error:  # beyond what the format can hold
                missing[frame - start] = OSError(errno.EIO, f"frame {frame} does not fit the format: {error}")
        if missing and time.monotonic() > self._opened + AGAIN_SECONDS:
            self._shut()  # a server that was away may be there again
        return _Block(block, layout, missing)

    def _frame(self, frames: Frames, number: int, n_frames: int) -> RawFrame:
        """Return a frame, which as a rule is the one behind the last."""
        at, reading = self._reading
        if at != number:
            reading = frames.read(number, n_frames)
        self._reading = -1, reading
        frame = next(reading)
        self._reading = number + 1, reading
        return frame

    def _shut(self) -> None:
        frames, self._frames = self._frames, None
        self._reading = -1, iter(())
        if frames is not None:
            frames.close()
