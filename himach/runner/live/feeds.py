"""Sources of arriving frames, a `Feed` each: `DatasetFeed` and `FileFeed` count the frames so far.

`EngineFeed` starts a receiving program for each engine, an `ImdClient`, and polls them.
"""

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
from himach.io.datasets.member import Member, read_members
from himach.io.datasets.request import DatasetRequest, FramesRequest
from himach.io.push.address import EngineAddress
from himach.io.push.held_slices import SUFFIX
from himach.io.store.sizes import parse_size
from himach.io.store.store import Dataset, Store
from himach.output.file_names import lasting_name
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
    stored: bytes | None = None  # serialized numbers of this node's frames of a dataset that is being staged
    details: Mapping[str, Any] = field(default_factory=dict)  # for the record and messages
    error: HimachError | None = None  # why there is no frame; ends the run if no other node has any either
    members: Mapping[str, int] | None = None


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
    """A dataset that is being pushed or staged."""

    def __init__(self, name: Path, cache: str, idle: float | None) -> None:
        super().__init__(idle)
        self._name = name
        self._store, reason = open_cache(cache)
        if self._store is None:
            raise UsageError(f"{name} is no file, and there is no store to find it in{': ' * bool(reason)}{reason}")
        self._dataset: Dataset | None = None
        self._pushed = False

    def poll(self) -> FramesSoFar:
        """Return the state of the frames in this node's store."""
        dataset = self._dataset = self._dataset or self._find_dataset()
        if dataset is None:
            missing = UsageError(
                f"there is no file {self._name}, and no dataset of this name yet: begin to push or stage it first, "
                "or say with --idle for how long to wait"
            )
            # Slices may have been pushed to this node, of which no frame is complete yet.
            slices = isinstance(self._store, Store) and self._store.generations(f"{self._name}{SUFFIX}")
            return FramesSoFar(over=self.over(0), error=None if self._idle is not None or slices else missing)
        dataset.refresh()
        numbers = dataset.native | dataset.alien
        frames = numbers.max() + 1 if numbers else 0
        if self._pushed:
            return FramesSoFar(frames, over=self.over(frames))
        return FramesSoFar(over=self.over(len(numbers)), stored=numbers.serialize())

    def _find_dataset(self) -> Dataset | None:
        assert self._store is not None
        candidates = find(self._store, list_names([self._name]))
        if not candidates:
            return None
        best = candidates[0]
        self._pushed = best.stamp.is_pushed
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


def find_engines(request: FramesRequest) -> dict[str, tuple[EngineAddress, FramesRequest | Member]]:
    """Return the engines of the members of an ensemble by name; of a run without an ensemble by the name ""."""
    sources: dict[str, FramesRequest | Member] = {"": request}
    if request.ensemble is not None:
        sources = {member.name: member for member in read_members(request.ensemble, request.topology)}
    engines = {}
    for name, source in sources.items():
        engine = next(filter(None, map(EngineAddress.parse, source.trajectories)), None)
        if engine is None:
            continue
        engines[name] = engine, source
        label, topology = (f"member {name}: ", "") if name else ("", " (--topology)")
        if len(source.trajectories) > 1:
            raise UsageError(f"{label}{engine} is followed by no other trajectory, and follows none")
        if source.topology is None:
            raise UsageError(f"{label}{engine} tells positions alone: name a topology file, too{topology}")
    return engines


class ImdClient:
    """A program that receives an engine's frames into this node's store."""

    def __init__(self, engine: EngineAddress, request: DatasetRequest, live: LiveOptions) -> None:
        self.analysed, self.stopped = 0, False  # the program learns them at the next poll
        self._arguments = (engine, request, live)
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
            self._connection.send((self.analysed, self.stopped))
            self._so_far = self._connection.recv()
        except (EOFError, OSError):
            if not self._so_far.over:
                message = f"what received the frames died (exit code {self._process.wait()})"
                error = None if self._so_far.frames else TrajectoryError(message)
                details = {**self._so_far.details, "error": message}
                self._so_far = replace(self._so_far, over=message, details=details, error=error)
        return self._so_far

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


class EngineFeed(Feed):
    """The engine of a run, or those among the members of its ensemble."""

    def __init__(self, request: FramesRequest, live: LiveOptions) -> None:
        super().__init__()
        engines = find_engines(request)
        size = parse_size(live.buffer) if isinstance(live.buffer, str) else live.buffer
        self._clients: dict[str, ImdClient] = {}
        self._counts: Mapping[str, int] = {}  # frames at the last poll
        for name, (engine, source) in engines.items():
            dataset = live.dataset or f"live-{engine.host}-{engine.port}-{time.strftime('%Y%m%d-%H%M%S')}"
            dataset = f"{dataset}-{lasting_name(name)}" if name else dataset
            topology = None if source.topology is None else Path(source.topology)
            kept = DatasetRequest([Path(dataset)], topology, request.keywords, request.cache)
            options = replace(live, dataset=dataset, buffer=(size or BUFFER) // len(engines))
            self._clients[name] = ImdClient(engine, kept, options)

    def start(self) -> None:
        """Connect all programs to their engines."""
        for client in self._clients.values():
            client.start()

    def poll(self) -> FramesSoFar:
        """Return the state of the frames in total and by member, with an error if all engines failed."""
        states = {name: client.poll() for name, client in self._clients.items()}
        self._counts = {name: state.frames for name, state in states.items()}
        if "" in states:
            return states[""]
        reasons, errors = [state.over for state in states.values()], [state.error for state in states.values()]
        return FramesSoFar(
            sum(self._counts.values()),
            any(state.late for state in states.values()),
            "; ".join(dict.fromkeys(reasons)) if all(reasons) else "",
            details={"members": {name: state.details for name, state in states.items()}},
            error=errors[0] if all(errors) else None,
            members=self._counts,
        )

    def analysed(self, frames: int) -> None:
        """Tell each program that its frames before `frames`, of members those of the last poll, are analysed."""
        for name, client in self._clients.items():
            client.analysed = self._counts.get(name, 0) if name else frames

    def stop(self) -> None:
        """Make the programs leave the engines and store their frames; then `over` is set."""
        for client in self._clients.values():
            client.stopped = True

    def close(self) -> None:
        """End the programs; received frames are kept."""
        for client in self._clients.values():
            client.close()
