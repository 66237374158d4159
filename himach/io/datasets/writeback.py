"""`Writeback`: writes missed frames to a store with the disk and cores that the analysis leaves idle."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.datasets.subsets import open_subset
from himach.io.store.store import Dataset, StoreError
from himach.io.trajectories import xtc

FREE_SECONDS = 0.3  # allowed in any case: enough for all of a small trajectory
FREE_PART = 0.06  # allowed beyond that even if no core is idle, as a part of the analysis's CPU time
CHECK_SECONDS = 0.02  # between checks of the idle time, which the system counts in hundredths of a second


class CpuBudget:
    """The CPU time of a background thread: what the system says is idle, also while the analysis waits for its disk."""

    def __init__(self, ranks: int = 1, *, only_idle: bool = False) -> None:
        self._ranks = ranks
        self._free_seconds, self._free_part = (0.0, 0.0) if only_idle else (FREE_SECONDS, FREE_PART)
        self._start_time = time.thread_time()
        self._checked_at = time.monotonic()
        self._idle_at_start = idle_seconds()
        self._idle_seconds = 0.0
        self._used_seconds = 0.0
        self._pieces = 0

    @property
    def cost(self) -> float:
        """Mean CPU seconds of a piece of work."""
        return self._used_seconds / max(1, self._pieces)

    def left(self) -> float:
        """Return the seconds that are left; only for the analysis's thread, which created this object."""
        now = time.monotonic()
        if now > self._checked_at + CHECK_SECONDS:
            self._checked_at = now
            self._idle_seconds = (idle_seconds() - self._idle_at_start) / self._ranks
        own_seconds = time.thread_time() - self._start_time
        return self._free_seconds + self._free_part * own_seconds + self._idle_seconds - self._used_seconds

    def take(self) -> None:
        """Record a finished piece of work; only for the thread that does nothing else."""
        self._used_seconds = time.thread_time()
        self._pieces += 1


def idle_seconds() -> float:
    """Return the seconds since boot for which the cores available to this process were idle, summed over cores."""
    names = {b"cpu%d" % core for core in os.sched_getaffinity(0)}
    try:
        with open("/proc/stat", "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"cpu")]
    except OSError:
        return 0.0
    # user, nice, system, idle, waiting for a disk, ...
    return sum(int(line[4]) + int(line[5]) for line in lines if line[0] in names) / os.sysconf("SC_CLK_TCK")


QUEUE_BYTES = 32 << 20
BATCH_BYTES = 2 << 20  # queued before the thread wakes
MIN_FRAMES = 4  # that fit in the queue, whatever their size
CLOSE_SECONDS = 1.0  # minimum time limit for writing queued frames at the end of a run
FLUSH_SECONDS = 1.0  # between flushes; a killed run may lose this much
WAIT_SECONDS = 0.1  # the analysis may wait this long for the disk in any case
WAIT_FRACTION = 0.03  # additional wait, as a fraction of elapsed time


@dataclass
class WriteResult:
    """Result of keeping frames."""

    frames: int = 0  # written to the store
    skipped: int = 0  # not written
    reason: str = ""  # first error, if any


@dataclass(eq=False)
class Writeback:
    """Writes whole frames to a dataset as aliens in a background thread, or some `atoms` of all frames to its subset.

    A frame is copied once; a compressed frame's memory is taken over instead. The store's library packs and writes
    without the GIL. If the disk is slower than the analysis, the queue fills: the analysis waits for a
    small part of its time, then frames are skipped. Frames are also skipped when the thread has used up its CPU budget.
    After an error of the store nothing more is written.
    """

    dataset: Dataset
    holds: Callable[[Sequence[int]], bool] | None = None
    cores: CpuBudget | None = None
    atoms: npt.NDArray[np.int64] | None = None
    first: int = -1  # frame to write whatever the CPU budget

    def __post_init__(self) -> None:
        self._numbers: list[int] = []
        self._positions = np.empty((0, 3), dtype=np.float32)  # of the coded frame that is written
        self._queue: deque[RawFrame] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._offered = 0
        self._present = 0
        self._written = 0
        self._reason = ""
        self._capacity = MIN_FRAMES
        self._batch = 1
        self._damaged = ""
        self._started = time.monotonic()
        self._waited = 0.0
        self._accepting = True

    def offer(self, frame: RawFrame) -> None:
        """Queue a copy of a frame; the memory of a coded one is taken and replaced. Never raises."""
        if frame.left and self.atoms is None:
            return
        self._offered += 1
        if self._reason:
            return
        if self.cores is not None:
            # Keep runs of consecutive frames, with gaps between: runs are read back the fastest.
            self._accepting = self.cores.left() > (0.0 if self._accepting else self.cores.cost * self._capacity / 2)
            if not self._accepting and frame.number != self.first:
                return
        if self._thread is None:
            try:
                self._start(frame)
            except StoreError as error:  # no room for another directory
                self._reason = str(error)
                return
        if self._has_room():
            try:
                copied = _copy(frame) if self.atoms is None else copy_rows(frame, self.atoms)
            except (OSError, ValueError) as error:  # a part that the analysis does not need cannot be read
                self._damaged = self._damaged or str(error)
                return
            with self._changed:
                self._queue.append(copied)
                # Wake the thread once a batch: each wake-up takes the analysis off its core.
                if len(self._queue) >= self._batch:
                    self._changed.notify_all()

    def close(self, keep: bool = True) -> WriteResult:
        """Write queued frames, unless the disk is too slow, or drop them."""
        if self._thread is not None:
            with self._changed:
                self._closing = True
                self._abandoned = not keep
                self._changed.notify_all()
            self._thread.join(max(CLOSE_SECONDS, self._allowed_wait()))
            with self._changed:
                self._abandoned = True
            # Do not wait longer for a last frame on its way to a disk that does not respond.
            self._thread.join(1.0)
            self._queue.clear()
        if not keep:
            with contextlib.suppress(StoreError):  # frames were confirmed before they were written
                self.dataset.drop(self._numbers)
        return WriteResult(self._written, self._offered - self._present - self._written, self._reason or self._damaged)

    def _start(self, frame: RawFrame) -> None:
        nbytes = sum(array.nbytes for array in (frame.positions, frame.velocities, frame.forces) if array is not None)
        if self.atoms is not None:
            self.dataset = open_subset(self.dataset, self.atoms).dataset
            nbytes = max(1, nbytes * len(self.atoms) // len(frame.positions))
        elif frame.coded is not None:
            nbytes = len(frame.coded.memory)
        self._capacity = max(MIN_FRAMES, QUEUE_BYTES // nbytes)
        self._batch = max(1, min(BATCH_BYTES // nbytes, self._capacity // 2))
        self._thread = threading.Thread(target=self._work, name="himach-writeback", daemon=True)
        self._thread.start()

    def _allowed_wait(self) -> float:
        """Return the seconds that the analysis may still wait."""
        return WAIT_SECONDS + WAIT_FRACTION * (time.monotonic() - self._started) - self._waited

    def _has_room(self) -> bool:
        """Wait for room in the queue; return False if the disk is too slow."""
        with self._changed:
            if len(self._queue) >= self._capacity:
                start = time.monotonic()
                self._changed.wait_for(lambda: len(self._queue) < self._capacity, max(0.0, self._allowed_wait()))
                self._waited += time.monotonic() - start
            return len(self._queue) < self._capacity

    def _work(self) -> None:
        """Write queued frames until the end, flushing periodically."""
        try:
            self._write_all()
        except StoreError as error:
            self._reason = str(error)
        try:
            self.dataset.flush()
        except StoreError as error:
            self._reason = self._reason or str(error)
        self._written = self.dataset.written
        with contextlib.suppress(StoreError):
            self.dataset.close()

    def _write_all(self) -> None:
        flush_at = time.monotonic() + FLUSH_SECONDS
        unflushed = False
        while (frames := self._take(flush_at)) is not None:
            for frame in frames:
                if self._abandoned:
                    return
                self._write(frame)
                if self.cores is not None:
                    self.cores.take()
                unflushed = True
            if unflushed and time.monotonic() > flush_at:
                self.dataset.flush()
                unflushed = False
            if not unflushed:
                flush_at = time.monotonic() + FLUSH_SECONDS

    def _take(self, deadline: float) -> list[RawFrame] | None:
        """Wait for a batch of frames or the deadline; return them, None at the end or if the origin has changed."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._queue) >= self._batch or self._closing, max(0.0, deadline - time.monotonic())
            )
            if self._abandoned or (self._closing and not self._queue):
                return None
            frames = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            self._changed.notify_all()
        if frames and self.holds is not None and not self.holds([frame.number for frame in frames]):
            self._reason = "the trajectory has changed"
            return None
        return frames

    def _write(self, frame: RawFrame) -> None:
        try:
            if frame.coded is not None:
                if len(self._positions) != frame.coded.n_atoms:
                    self._positions = np.empty((frame.coded.n_atoms, 3), dtype=np.float32)
                xtc.decode(frame.coded, self._positions)
                frame.positions = self._positions
            if self.dataset.write(frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces):
                self._numbers.append(frame.number)
            else:
                self._present += 1
        except ValueError as error:  # damaged beyond the atoms that the analysis needs
            self._damaged = self._damaged or f"frame {frame.number}: {error}"


def _copy(frame: RawFrame) -> RawFrame:
    """Return a copy of a frame; the memory of a coded one is taken."""
    if frame.coded is None:
        return copy_rows(frame)
    if frame.coded.complete is not None:
        frame.coded.complete()
    taken, frame.coded.memory = replace(frame.coded), np.empty(0, dtype=np.uint8)
    box = None if frame.box is None else frame.box.copy()
    return RawFrame(frame.number, frame.time, frame.positions[:0], box, coded=taken)


def copy_rows(frame: RawFrame, atoms: npt.NDArray[np.int64] | None = None) -> RawFrame:
    """Return a copy of these atoms of a frame (None: of all)."""
    positions, velocities, forces = (
        None if vectors is None else vectors.copy() if atoms is None else vectors[atoms]
        for vectors in (frame.positions, frame.velocities, frame.forces)
    )
    assert positions is not None
    box = None if frame.box is None else frame.box.copy()
    return RawFrame(frame.number, frame.time, positions, box, velocities, forces)
