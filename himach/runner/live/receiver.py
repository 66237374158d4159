"""``python -m himach.runner.live.receiver``: receives an engine's frames and keeps them in this node's store.

`himach.runner.live.feeds` starts it and exchanges lines with it. Four threads: imdclient's receives, the main one
writes to the store, one reads commands, and one makes frames visible and reports.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import AUTHOR
from himach.io.datasets.lookup import list_names
from himach.io.push.address import EngineAddress
from himach.io.push.engine import EngineStream
from himach.io.store.quota import check_quota, chosen_quota, open_chosen
from himach.io.store.store import Dataset, StoreConflictError
from himach.io.trajectories.origin import existing_path
from himach.io.universe.topology import parse
from himach.runner.live.feeds import FramesSoFar, ReceiverOptions

__all__: list[str] = []

POLL_SECONDS = 0.05  # seconds between flushes
BUFFER_BYTES = 64 << 20  # of frames that are received but not yet written
CONNECT_SECONDS = 10.0  # time for the engine to begin to listen


class FrameKeeper:
    """Writes frames to a dataset and reports its status."""

    def __init__(self, options: ReceiverOptions) -> None:
        self.stopped = False
        self.stream: EngineStream | None = None
        self._options = options
        self._so_far = FramesSoFar()
        self._details = {"engine": options.engine, "dataset": options.dataset}
        self._late, self._left_out, self._pauses, self._paused = False, 0, 0, 0.0
        self._visible = 0  # one past the last readable frame's number
        self._changed = threading.Condition()
        self._dataset: Dataset | None = None
        self._written = 0  # one past the last frame's number, visible or not
        self._analysed = 0
        self._frame_bytes = 0
        self._over = threading.Event()

    def keep(self, dataset: Dataset, stream: EngineStream) -> None:
        """Keep frames until the stream ends."""
        with self._changed:
            self.stream, self._dataset = stream, dataset
        if self.stopped:  # before the stream was opened
            stream.stop()
        for frame in stream.frames():
            with self._changed:
                fields = [field for field in (frame.positions, frame.velocities, frame.forces) if field is not None]
                self._frame_bytes = sum(field.nbytes for field in fields)
                self._update_late()
                if self._late and not self._wait_or_skip(frame):
                    continue
                dataset.write(
                    frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True
                )
                self._written = frame.number + 1
                if self._options.every and self._written % self._options.every == 0:
                    self._flush()
                    self._report()

    def _update_late(self) -> None:
        """Set `late` when the buffer is full; clear it when half of it is free."""
        behind = (self._written - self._analysed) * self._frame_bytes
        self._late = behind > self._options.buffer // (2 if self._late else 1)

    def _wait_or_skip(self, frame: RawFrame) -> bool:
        """Wait for the analysis, so that imdclient pauses the engine, or skip; return whether to keep the frame."""
        if self._options.stride_when_late:
            keeps = frame.number % self._options.stride_when_late == 0
            self._left_out += not keeps
            return keeps
        while self._late and not self.stopped:
            self._changed.wait()
        return True

    def analysed(self, frames: int) -> None:
        """Note how many frames are analysed."""
        with self._changed:
            self._analysed = frames
            self._update_late()
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop receiving from the engine."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()
            stream = self.stream
        if stream is not None:
            stream.stop()

    def watch(self) -> None:
        """Make frames visible and report, every `POLL_SECONDS` until the end; in a thread."""
        last_time, was_paused = time.monotonic(), False
        while not self._over.wait(POLL_SECONDS):
            now = time.monotonic()
            with self._changed:
                paused = self.stream is not None and self.stream.paused
                self._pauses += paused and not was_paused
                self._paused += (now - last_time) * paused
                with contextlib.suppress(HimachError):  # the next write reports it
                    self._flush()
                self._report()
            last_time, was_paused = now, paused

    def end(self, over: str, error: BaseException | None = None) -> None:
        """Flush and close the dataset, and report for the last time."""
        self._over.set()
        with self._changed:
            try:
                if self._dataset is not None:
                    self._flush()
                    self._dataset.close()
            except HimachError as failed:
                error = error or failed
            self._late = False
            if error is not None:
                over = self._details["error"] = str(error) or type(error).__name__
            self._report(over, over if isinstance(error, UsageError) and not self._visible else "")

    def _flush(self) -> None:
        if self._dataset is not None and self._written > self._visible:
            self._dataset.flush()
            self._visible = self._written

    def _report(self, over: str = "", missing: str = "") -> None:
        counts = {"left_out": self._left_out, "pauses": self._pauses, "paused": round(self._paused, 3)}
        so_far = FramesSoFar(self._visible, self._late, over, details={**self._details, **counts}, missing=missing)
        if so_far != self._so_far:
            self._so_far = so_far
            with contextlib.suppress(OSError, ValueError):  # the reader is gone
                print(json.dumps(asdict(so_far)), flush=True)


def main() -> None:
    """Receive as the first line of standard input says, until the stream or the input ends."""
    warnings.simplefilter("ignore")  # the run issues them
    logging.disable()
    line = sys.stdin.readline()
    if not line:  # the run ended before it began
        return
    options = ReceiverOptions(**json.loads(line))
    keeper = FrameKeeper(options)
    for task in (_listen, FrameKeeper.watch):
        threading.Thread(target=task, args=(keeper,), daemon=True).start()
    over, error = "", None
    try:
        over = _receive(options, keeper)
    except BaseException as caught:
        over, error = "it failed", caught
    keeper.end(over, error)
    sys.stdout.flush()
    os._exit(0)  # imdclient's thread may wait for an engine that does not answer


def _receive(options: ReceiverOptions, keeper: FrameKeeper) -> str:
    """Receive frames; return why the stream ended."""
    address = EngineAddress.parse(options.engine)
    assert address is not None
    n_atoms = parse(existing_path(options.topology, "topology"), options.keywords).n_atoms
    with _new_dataset(options, address, keeper) as dataset:
        timeout = CONNECT_SECONDS if options.idle is None else options.idle
        stream = EngineStream(address, n_atoms, options.idle, timeout, BUFFER_BYTES, lambda: keeper.stopped)
        try:
            keeper.keep(dataset, stream)
        except BaseException:
            stream.disconnect()
            raise
        if stream.broken:
            raise TrajectoryError(stream.ended)
        return stream.ended


@contextlib.contextmanager
def _new_dataset(options: ReceiverOptions, address: EngineAddress, keeper: FrameKeeper) -> Iterator[Dataset]:
    """Create a new dataset for the frames; remove it at the end if no frame was written."""
    store, reason = open_chosen(options.cache)
    if store is None:
        raise UsageError(reason or "a live run keeps its frames in this node's store: --cache off makes no sense here")
    quota = chosen_quota(store.path)
    check_quota(store.path, quota)
    store.set_quota(quota)
    name, author = options.dataset, f"{address} {time.strftime('%Y-%m-%d %H:%M:%S')} {os.urandom(4).hex()}"
    if os.path.isabs(name) or os.path.exists(name):
        raise UsageError(f"--dataset {name}: that is a path; the frames need a name that is none")
    with store.locked():
        if any(store.generations(stored_name) for stored_name in list_names([Path(name)])):
            raise StoreConflictError(
                f"there is a dataset {name} already: give another --dataset, or 'himach cache evict {name}' first"
            )
        dataset = store.dataset(name)
        dataset.attach(AUTHOR, author.encode())
    try:
        yield dataset
    finally:
        if not keeper._written:
            keeper._dataset = None
            with contextlib.suppress(HimachError):
                dataset.close()
                store.remove(dataset.path.name)


def _listen(keeper: FrameKeeper) -> None:
    """Execute the run's commands; stop when the input closes, because the run has ended."""
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "analysed":
            keeper.analysed(int(value))
        elif word == "stop":
            keeper.stop()
    keeper.stop()


if __name__ == "__main__":
    main()
