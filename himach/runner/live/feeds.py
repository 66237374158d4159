"""Sources of arriving frames, a `Feed` each: `DatasetFeed` and `FileFeed` count the frames so far.

`EngineFeed` starts a receiving program for each engine, an `ImdClient`, and polls them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.datasets.lookup import find, list_names, open_cache
from himach.io.datasets.member import Member, read_members
from himach.io.datasets.request import FramesRequest
from himach.io.push.address import EngineAddress
from himach.io.push.held_slices import SUFFIX
from himach.io.store.sizes import parse_size
from himach.io.store.store import Dataset, Store
from himach.io.trajectories.origin import open_origin
from himach.output.names import lasting_name
from himach.runner.options import LiveOptions

POLL_SECONDS = 0.25  # minimum seconds between polls of files
POLL_FACTOR = 10
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
    missing: str = ""  # the error if no other node has anything either; "" for none
    members: Mapping[str, int] | None = None


class Feed:
    """Arriving frames, on a rank that leaves them to another one."""

    def start(self) -> None:
        """Let frames come."""

    def poll(self) -> FramesSoFar | None:
        """Return the state of the frames; None if another rank knows it."""
        return None

    def analysed(self, frames: int) -> None:
        """Note that the frames before this number are analysed, for a source that waits for the analysis."""

    def stop(self) -> None:
        """End the feed."""

    def close(self) -> None:
        """Free what the feed has."""


class Idle(Feed):
    """Base of feeds that end when no frame arrives for a while, or when stopped."""

    def __init__(self, idle: float | None) -> None:
        self._idle = idle
        self._frames = -1
        self._last_change = time.monotonic()
        self._stopped = ""

    def start(self) -> None:
        """Start the idle time."""
        self._last_change = time.monotonic()

    def stop(self) -> None:
        """End the feed."""
        self._stopped = "it was told to end"

    def over(self, frames: int) -> str:
        """Return why the feed is over, given the current number of frames; "" if it is not."""
        if frames != self._frames:
            self._frames, self._last_change = frames, time.monotonic()
        if self._idle is not None and time.monotonic() > self._last_change + self._idle:
            return self._stopped or "no frame came any more"
        return self._stopped


class DatasetFeed(Idle):
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
            missing = (
                f"there is no file {self._name}, and no dataset of this name yet: begin to push or stage it first, "
                "or say with --idle for how long to wait"
            )
            # Slices may have been pushed to this node, of which no frame is complete yet.
            slices = isinstance(self._store, Store) and self._store.generations(f"{self._name}{SUFFIX}")
            return FramesSoFar(over=self.over(0), missing="" if self._idle is not None or slices else missing)
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


class FileFeed(Idle):
    """Files of which the last one grows."""

    def __init__(
        self, trajectories: Sequence[Path], topology: Path | None, keywords: Mapping[str, Any], idle: float | None
    ) -> None:
        super().__init__(idle)
        self._open_arguments = (trajectories, topology, keywords)
        self._watched_paths: list[str] = [os.path.expanduser(path) for path in trajectories]
        self._last_states: list[tuple[int, int]] = []
        self._count = self._atoms = 0
        self._next_poll = 0.0

    def poll(self) -> FramesSoFar:
        """Return the state of the frames; spend at most a tenth of the time on files that grow."""
        now = time.monotonic()
        if now >= self._next_poll:
            stats = [os.stat(path) for path in self._watched_paths]
            states = [(status.st_size, status.st_mtime_ns) for status in stats]
            if states != self._last_states:
                self._last_states = states
                self._reopen()
            self._next_poll = time.monotonic() + max(POLL_SECONDS, POLL_FACTOR * (time.monotonic() - now))
        return FramesSoFar(self._count, over=self.over(self._count))

    def _reopen(self) -> None:
        trajectories, topology, keywords = self._open_arguments
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a cut last frame is expected
                origin = open_origin(trajectories, topology, keywords)
        except TrajectoryError:  # the file is being written
            return
        if origin.n_frames < self._count or (self._atoms and origin.n_atoms != self._atoms):
            raise TrajectoryError(
                f"{origin.paths[-1]} had {self._count} frames of {self._atoms} atoms and now has {origin.n_frames} of "
                f"{origin.n_atoms}: it was replaced while it was followed"
            )
        self._count, self._atoms = origin.n_frames, origin.n_atoms
        self._watched_paths = [path for file, _ in origin.files() for path in file.stamps]


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


@dataclass(frozen=True)
class ReceiverOptions(LiveOptions):
    """Options of the receiver: those of the live run, with `dataset` and `buffer` set, the source and the store."""

    engine: str = ""  # its address (see `himach.io.push.address`)
    topology: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "auto"  # the store, as in a job
    dataset: str = ""
    buffer: int = 0


class ImdClient:
    """A program that receives an engine's frames into this node's store."""

    def __init__(self, options: ReceiverOptions) -> None:
        self._so_far = FramesSoFar()
        # In its own session the program does not get the terminal's Ctrl-C. It ends when its input does.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "himach.runner.live.receiver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="himach-reception", daemon=True)
        self._reader.start()
        self._options = options

    def start(self) -> None:
        """Connect the program to the engine, which waits until then."""
        self.send(json.dumps(asdict(self._options)))

    def poll(self) -> FramesSoFar:
        """Return the state of the frames so far; raise the error that came before the first of them."""
        so_far = self._so_far
        if so_far.missing:
            raise UsageError(so_far.missing)
        if not so_far.frames and "error" in so_far.details:
            raise TrajectoryError(so_far.over)
        return so_far

    def send(self, line: str) -> None:
        """Send a command: ``analysed N`` of N frames, or ``stop`` to leave the engine and store its frames."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, as its last report says
            self._process.stdin.write(line + "\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._so_far = FramesSoFar(**json.loads(line))
        if not self._so_far.over:
            self._process.wait()
            message = f"what received the frames died (exit code {self._process.returncode})"
            self._so_far = replace(self._so_far, over=message, details={**self._so_far.details, "error": message})

    def close(self) -> None:
        """End the program; received frames are kept."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except BaseException as error:
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        self._reader.join()


class EngineFeed(Feed):
    """The engine of a run, or those among the members of its ensemble."""

    def __init__(self, request: FramesRequest, live: LiveOptions) -> None:
        engines = find_engines(request)
        size = parse_size(live.buffer) if isinstance(live.buffer, str) else live.buffer
        self._clients: dict[str, ImdClient] = {}
        self._errors: dict[str, HimachError] = {}
        self._counts: Mapping[str, int] = {}  # frames at the last poll
        for name, (engine, source) in engines.items():
            dataset = live.dataset or f"live-{engine.host}-{engine.port}-{time.strftime('%Y%m%d-%H%M%S')}"
            fields = {
                **vars(live),
                "dataset": f"{dataset}-{lasting_name(name)}" if name else dataset,
                "buffer": (size or BUFFER) // len(engines),
                "engine": str(engine),
                "topology": str(source.topology),
            }
            options = ReceiverOptions(**fields, keywords=request.keywords, cache=request.cache)
            self._clients[name] = ImdClient(options)

    def start(self) -> None:
        """Connect all programs to their engines."""
        for client in self._clients.values():
            client.start()

    def poll(self) -> FramesSoFar:
        """Return the state of the frames in total and by member; raise an error if all engines failed."""
        states = {}
        for name, client in self._clients.items():
            try:
                states[name] = client.poll()
            except HimachError as error:  # it concerns only this member
                self._errors[name] = error
                states[name] = FramesSoFar(over=str(error), details={"error": str(error)})
        if len(self._errors) == len(self._clients):
            raise next(iter(self._errors.values()))
        self._counts = {name: state.frames for name, state in states.items()}
        if "" in states:
            return states[""]
        reasons = [state.over for state in states.values()]
        return FramesSoFar(
            sum(self._counts.values()),
            any(state.late for state in states.values()),
            "; ".join(dict.fromkeys(reasons)) if all(reasons) else "",
            details={"members": {name: state.details for name, state in states.items()}},
            members=self._counts,
        )

    def analysed(self, frames: int) -> None:
        """Tell each program that its frames before `frames`, of members those of the last poll, are analysed."""
        for name, client in self._clients.items():
            client.send(f"analysed {self._counts.get(name, 0) if name else frames}")

    def stop(self) -> None:
        """Make the programs leave the engines and store their frames; then `over` is set."""
        for client in self._clients.values():
            client.send("stop")

    def close(self) -> None:
        """End the programs; received frames are kept."""
        for client in self._clients.values():
            client.close()
