"""``python -m himach.runner.live.receiver``: receives an engine's frames and keeps them in this node's store.

`himach.runner.live.feeds` starts it and polls it over a connection. Three threads: imdclient's receives, the main one
writes to the store, and one makes frames visible and answers.
"""

import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import AUTHOR
from himach.io.datasets.lookup import list_names
from himach.io.datasets.opening import open_to_write
from himach.io.datasets.request import DatasetRequest
from himach.io.push.address import EngineAddress
from himach.io.push.engine import EngineStream
from himach.io.store.store import Dataset, StoreConflictError
from himach.io.trajectories.origin import existing_path
from himach.io.universe.topology import parse
from himach.runner.live.feeds import FramesSoFar
from himach.runner.options import LiveOptions

__all__: list[str] = []

FLUSH_SECONDS = 0.05  # seconds between flushes
BUFFER_BYTES = 64 << 20  # of frames that are received but not yet written
CONNECT_SECONDS = 10.0  # time for the engine to begin to listen


class FrameKeeper:
    """Writes an engine's frames to a new dataset, which `request` names, and answers the run."""

    def __init__(self, engine: EngineAddress, request: DatasetRequest, live: LiveOptions) -> None:
        self.stopped = False
        self._engine, self._request, self._live = engine, request, live
        self._changed = threading.Condition()
        self._stream: EngineStream | None = None
        self._dataset: Dataset | None = None
        self._visible = 0  # one past the last readable frame's number
        self._written = 0  # one past the last frame's number, visible or not
        self._analysed = 0
        self._frame_bytes = 0
        self._late, self._left_out, self._pauses, self._paused = False, 0, 0, 0.0
        self._over = ""  # why the stream ended
        self._error: HimachError | None = None

    def receive(self) -> None:
        """Keep frames until the stream ends; then flush and close the dataset."""
        over, error = "", None
        try:
            over = self._receive()
        except BaseException as caught:
            error = caught
        with self._changed:
            try:
                if self._dataset is not None:
                    self._flush()
                    self._dataset.close()
            except HimachError as failed:
                error = error or failed
            self._dataset, self._late = None, False
            if error is not None:
                over = str(error) or type(error).__name__
                self._error = error if isinstance(error, UsageError) else TrajectoryError(over)
            self._over = over

    def _receive(self) -> str:
        """Keep frames; return why the stream ended."""
        n_atoms = parse(existing_path(str(self._request.topology), "topology"), self._request.keywords).n_atoms
        with self._new_dataset() as dataset:
            idle = self._live.idle
            timeout = CONNECT_SECONDS if idle is None else idle
            stream = EngineStream(self._engine, n_atoms, idle, timeout, BUFFER_BYTES, lambda: self.stopped)
            try:
                self._keep(dataset, stream)
            except BaseException:
                stream.disconnect()
                raise
            if stream.broken:
                raise TrajectoryError(stream.ended)
            return stream.ended

    @contextlib.contextmanager
    def _new_dataset(self) -> Iterator[Dataset]:
        """Create a new dataset for the frames; remove it at the end if no frame was written."""
        refusal = "a live run keeps its frames in this node's store: --cache off makes no sense here"
        store = open_to_write(self._request.cache, refusal)
        names = self._request.trajectories
        name, author = str(names[0]), f"{self._engine} {time.strftime('%Y-%m-%d %H:%M:%S')} {os.urandom(4).hex()}"
        if os.path.isabs(name) or os.path.exists(name):
            raise UsageError(f"--dataset {name}: that is a path; the frames need a name that is none")
        with store.locked():
            if any(store.generations(stored_name) for stored_name in list_names(names)):
                raise StoreConflictError(
                    f"there is a dataset {name} already: give another --dataset, or 'himach cache evict {name}' first"
                )
            dataset = store.dataset(name)
            dataset.attach(AUTHOR, author.encode())
        try:
            yield dataset
        finally:
            if not self._written:
                with self._changed:
                    self._dataset = None
                with contextlib.suppress(HimachError):
                    dataset.close()
                    store.remove(dataset.path.name)

    def _keep(self, dataset: Dataset, stream: EngineStream) -> None:
        with self._changed:
            self._stream, self._dataset = stream, dataset
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

    def _update_late(self) -> None:
        """Set `late` when the buffer is full; clear it when half of it is free."""
        behind = (self._written - self._analysed) * self._frame_bytes
        self._late = behind > int(self._live.buffer or 0) // (2 if self._late else 1)

    def _wait_or_skip(self, frame: RawFrame) -> bool:
        """Wait for the analysis, so that imdclient pauses the engine, or skip; return whether to keep the frame."""
        if self._live.stride_when_late:
            keeps = frame.number % self._live.stride_when_late == 0
            self._left_out += not keeps
            return keeps
        while self._late and not self.stopped:
            self._changed.wait()
        return True

    def answer(self, connection: "Connection[Any, Any]") -> None:
        """Answer the run, and make frames visible every `FLUSH_SECONDS`, until the run ends; in a thread."""
        last_time, was_paused = time.monotonic(), False
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = connection.recv() if connection.poll(FLUSH_SECONDS) else None
                now = time.monotonic()
                with self._changed:
                    paused = self._stream is not None and not self._over and self._stream.paused
                    self._pauses += paused and not was_paused
                    self._paused += (now - last_time) * paused
                    with contextlib.suppress(HimachError):  # the next write reports it
                        self._flush()
                    if message is not None:
                        self._take(*message)
                    so_far = self._so_far()
                if message is not None:
                    connection.send(so_far)
                last_time, was_paused = now, paused
        self._take(self._analysed, True)

    def _take(self, analysed: int, stopped: bool) -> None:
        """Note how many frames are analysed, and whether to stop receiving."""
        with self._changed:
            if stopped and not self.stopped and self._stream is not None:
                self._stream.stop()
            self.stopped = stopped
            if analysed != self._analysed:
                self._analysed = analysed
                self._update_late()
            self._changed.notify_all()

    def _flush(self) -> None:
        if self._dataset is not None and self._written > self._visible:
            self._dataset.flush()
            self._visible = self._written

    def _so_far(self) -> FramesSoFar:
        details = {
            "engine": str(self._engine),
            "dataset": self._live.dataset,
            "left_out": self._left_out,
            "pauses": self._pauses,
            "paused": round(self._paused, 3),
        }
        if self._error is None:
            return FramesSoFar(self._visible, self._late, self._over, details=details)
        if self._visible:
            return FramesSoFar(self._visible, over=self._over, details={**details, "error": self._over})
        return FramesSoFar(over=self._over, details={"error": self._over}, error=self._error)


def main() -> None:
    """Receive what the run asks for, and answer it until it ends."""
    warnings.simplefilter("ignore")  # the run issues them
    logging.disable()
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        keeper = FrameKeeper(*connection.recv())
    except EOFError:  # the run ended before it began
        return
    answering = threading.Thread(target=keeper.answer, args=(connection,), daemon=True)
    answering.start()
    keeper.receive()
    answering.join()
    os._exit(0)  # imdclient's thread may wait for an engine that does not answer


if __name__ == "__main__":
    main()
