"""Sources of arriving frames, a `Feed` each: `DatasetFeed` and `FileFeed` count the frames so far.

`EngineFeed` starts a program that receives an engine's frames, and polls it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.datasets.lookup import find, list_names, open_cache
from himach.io.datasets.request import DatasetRequest, FramesRequest
from himach.io.push.address import EngineAddress
from himach.io.push.held_slices import SUFFIX
from himach.io.store.sizes import parse_size
from himach.io.store.store import Dataset, Store
from himach.runner.options import LiveOptions
from himach.staging.shares import GrowingFiles

BUFFER = 2 * 10**9  # bytes of unanalysed frames above which an engine is paused
#: Time limit for a receiving program to store its frames and end.
END_SECONDS = 20.0


@dataclass(frozen=True)
class FramesSoFar:
    """State of the arriving frames, as a rank sees it."""

    frames: int = 0  # frames before this number can be analysed
    late: bool = False  # whether the engine waits, or skips frames, until an update is done
    over: str = ""  # why no more frames will arrive; "" while they may
    details: Mapping[str, Any] = field(default_factory=dict)  # for the record and messages
    error: HimachError | None = None  # why there is no frame; ends the run if no other node has any either


class Feed:
    """Arriving frames: none on a rank that leaves them to another one.

    A feed ends when no frame arrives for a while, or when stopped.
    """

    def __init__(self, idle: float | None = None) -> None:
        self._idle = idle
        self._frames = -1
        self._last_change = time.monotonic()
        self._stopped = ""

    def start(self) -> None:
        """Let frames come; start the idle time."""
        self._last_change = time.monotonic()

    def poll(self) -> FramesSoFar | None:
        """Return the state of the frames; None if another rank knows it."""
        return None

    def analysed(self, frames: int) -> None:
        """Note that the frames before this number are analysed, for a source that waits for the analysis."""

    def stop(self) -> None:
        """End the feed."""
        self._stopped = "it was told to end"

    def close(self) -> None:
        """Free what the feed has."""

    def over(self, frames: int) -> str:
        """Return why the feed is over, given the current number of frames; "" if it is not."""
        if frames != self._frames:
            self._frames, self._last_change = frames, time.monotonic()
        if self._idle is not None and time.monotonic() > self._last_change + self._idle:
            return self._stopped or "no frame came any more"
        return self._stopped


class DatasetFeed(Feed):
    """A dataset that is being pushed."""

    def __init__(self, name: Path, cache: str, idle: float | None) -> None:
        super().__init__(idle)
        self._name = name
        self._store, reason = open_cache(cache)
        if self._store is None:
            raise UsageError(f"{name} is no file, and there is no store to find it in{': ' * bool(reason)}{reason}")
        self._dataset: Dataset | None = None

    def poll(self) -> FramesSoFar:
        """Return the state of the frames in this node's store."""
        dataset = self._dataset = self._dataset or self._find_dataset()
        if dataset is None:
            missing = UsageError(
                f"there is no file {self._name}, and no dataset of this name yet: begin to push it first, or say with "
                "--idle for how long to wait"
            )
            # Slices may have been pushed to this node, of which no frame is complete yet.
            slices = isinstance(self._store, Store) and self._store.generations(f"{self._name}{SUFFIX}")
            return FramesSoFar(over=self.over(0), error=None if self._idle is not None or slices else missing)
        dataset.refresh()
        numbers = dataset.native | dataset.alien
        frames = numbers.max() + 1 if numbers else 0
        return FramesSoFar(frames, over=self.over(frames))

    def _find_dataset(self) -> Dataset | None:
        assert self._store is not None
        candidates = find(self._store, list_names([self._name]))
        if not candidates:
            return None
        best = candidates[0]
        if not best.stamp.is_pushed:
            raise UsageError(
                f"dataset {self._name} has frames of files, which are there: follow the file that grows (-t FILE), or "
                "run over what is staged"
            )
        dataset = self._store.dataset(best.name, best.generation, create=False)
        if not isinstance(dataset, Dataset):
            raise UsageError(f"dataset {self._name} is in another user's store, which cannot be followed")
        return dataset


class FileFeed(Feed):
    """Files of which the last one grows."""

    def __init__(self, request: DatasetRequest, idle: float | None) -> None:
        super().__init__(idle)
        self._files = GrowingFiles(request)

    def poll(self) -> FramesSoFar:
        """Return the state of the frames."""
        origin = self._files.poll()
        frames = 0 if origin is None else origin.n_frames
        return FramesSoFar(frames, over=self.over(frames))


def find_engine(request: FramesRequest) -> EngineAddress | None:
    """Return the engine whose frames a request names; None if it names no engine."""
    engine = next(filter(None, map(EngineAddress.parse, request.trajectories)), None)
    if engine is not None and len(request.trajectories) > 1:
        raise UsageError(f"{engine} is followed by no other trajectory, and follows none")
    if engine is not None and request.topology is None:
        raise UsageError(f"{engine} tells positions alone: name a topology file, too (--topology)")
    return engine


class EngineFeed(Feed):
    """A running engine, by a program that receives its frames into this node's store."""

    def __init__(self, request: FramesRequest, live: LiveOptions) -> None:
        super().__init__()
        engine = find_engine(request)
        assert engine is not None
        dataset = live.dataset or f"live-{engine.host}-{engine.port}-{time.strftime('%Y%m%d-%H%M%S')}"
        size = parse_size(live.buffer) if isinstance(live.buffer, str) else live.buffer
        kept = DatasetRequest([Path(dataset)], request.topology, request.keywords, request.cache)
        self._arguments = (engine, kept, replace(live, dataset=dataset, buffer=size or BUFFER))
        self._analysed = 0
        self._so_far = FramesSoFar()
        self._connection, other_end = Pipe()
        # In its own session the program does not get the terminal's Ctrl-C. It ends when the connection does.
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "himach.runner.live.receiver", str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self) -> None:
        """Connect the program to the engine, which waits until then."""
        with suppress(OSError):  # it has died, as the next poll says
            self._connection.send(self._arguments)

    def poll(self) -> FramesSoFar:
        """Return the state of the frames so far."""
        try:
            self._connection.send((self._analysed, bool(self._stopped)))
            self._so_far = self._connection.recv()
        except (EOFError, OSError):
            if not self._so_far.over:
                message = f"what received the frames died (exit code {self._process.wait()})"
                error = None if self._so_far.frames else TrajectoryError(message)
                details = {**self._so_far.details, "error": message}
                self._so_far = replace(self._so_far, over=message, details=details, error=error)
        return self._so_far

    def analysed(self, frames: int) -> None:
        """Tell the program at the next poll that the frames before this number are analysed."""
        self._analysed = frames

    def close(self) -> None:
        """End the program; received frames are kept."""
        self._connection.close()
        try:
            self._process.wait(END_SECONDS)
        except BaseException as error:
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
