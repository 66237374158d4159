"""A run over frames that still come: `go_live()`, one ordinary run after another over what there is.

Each maps only what is new, because pairs are kept from one to the next. The last one is a run over all that came; so
its outcome is that of a run over the dataset or files that are left.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.push.address import EngineAddress
from himach.io.store.sizes import parse_size
from himach.parallel.collective import on_every_rank, on_first_rank
from himach.parallel.communicator import World
from himach.parallel.quiet import say
from himach.runner.job import Job
from himach.runner.live.between import pairs_between
from himach.runner.live.feeds import DatasetFeed, EngineFeed, Feed, FileFeed, Seen
from himach.runner.live.receiving import Order, name_for, need_imdclient
from himach.runner.starting.ahead import import_ahead

if TYPE_CHECKING:
    from himach.runner.assembling.here import Assembling

__all__ = ["LiveJob", "Update", "give_way", "go_live", "nothing"]

T = TypeVar("T")

LOOK = 0.05  # seconds between looks at what has come
NICE = 10  # what ranks that live runs start add to their niceness
BUFFER = 2 * 10**9  # bytes of frames that no update has taken before an engine is paused


@dataclass(frozen=True)
class LiveJob:
    """What a live run is asked, beside what each of its runs is.

    Attributes
    ----------
    trajectories, topology, keywords, cache, pairs, out, start, stop, step
        As of a job.
    every
        Frames after which there is an update; None: there is the last outcome alone.
    idle
        Seconds without a new frame after which it ends; None: an engine's end, or Ctrl-C, ends it.
    dataset
        Name under which an engine's frames are kept; None for one with host, port and time.
    buffer
        Bytes of an engine's frames that no update has taken before the engine is paused, or a size such as ``"2GB"``.
    stride
        Keep every so-manieth frame then, and pause nothing.
    """

    trajectories: Sequence[Path]
    topology: Path | None
    keywords: Mapping[str, Any]
    cache: str
    pairs: Path | None = None
    out: Path | None = None
    start: int | None = None
    stop: int | None = None
    step: int | None = None
    every: int | None = None
    idle: float | None = None
    dataset: str | None = None
    buffer: int | str | None = None
    stride: int | None = None

    @classmethod
    def of(cls, job: Job, **asked: Any) -> LiveJob:
        """Return what a job is asked as a live one."""
        return cls(
            *(job.trajectories, job.topology, job.keywords, job.cache, job.pairs, job.out),
            *(job.start, job.stop, job.step),
            **asked,
        )

    @property
    def engine(self) -> EngineAddress | None:
        """The engine whose frames come; None if it is none."""
        return EngineAddress.named(self.trajectories[0]) if self.trajectories else None

    def check(self) -> None:
        """Refuse what makes no sense."""
        if self.engine is None:
            for name, value in (("dataset", self.dataset), ("buffer", self.buffer), ("stride_when_late", self.stride)):
                if value is not None:
                    raise UsageError(f"{name} is for the frames of a running engine, imd://HOST:PORT")
        else:
            if len(self.trajectories) > 1:
                raise UsageError(f"{self.engine} is followed by no other trajectory")
            if self.topology is None:
                raise UsageError(f"{self.engine} tells positions alone: name a topology file, too (--topology)")
            if self.cache == "off":
                raise UsageError("a live run keeps its frames in this node's store: cache 'off' makes no sense here")
            need_imdclient()
        for name, number in (("every", self.every), ("stride_when_late", self.stride)):
            if number is not None and number < 1:
                raise UsageError(f"{name} is {number}; it is a number of frames from 1 on")
        if self.idle is not None and self.idle <= 0:
            raise UsageError(f"idle is {self.idle}; it is a number of seconds above 0")

    def feed(self, world: World) -> Feed | None:
        """Return what to look at, on this rank; None where another one looks."""
        engine = self.engine
        first = world.comm.rank == 0
        if engine is not None:
            size = parse_size(self.buffer) if isinstance(self.buffer, str) else self.buffer
            name = self.dataset or name_for(engine.host, engine.port)
            order = (str(engine), str(self.topology), dict(self.keywords), self.cache, name, self.idle, self.every)
            return EngineFeed(Order(*order, size or BUFFER, self.stride)) if first else None
        if len(self.trajectories) > 1 or self.trajectories[0].expanduser().exists():
            return FileFeed(self.trajectories, self.topology, self.keywords, self.idle) if first else None
        return DatasetFeed(self.trajectories[0], self.cache, self.idle) if world.leaders is not None else None

    def slices(self, world: World) -> Assembling | None:
        """Return what puts together slices that come; None of an engine or of files (collective)."""
        files = self.engine is not None or len(self.trajectories) > 1 or self.cache == "off"
        if files or world.comm.bcast(self.trajectories[0].expanduser().exists()):
            return None
        from himach.runner.assembling.here import Assembling

        return Assembling(world, self.cache, self.trajectories[0])


@dataclass(frozen=True)
class Update:
    """One of the runs of a live run.

    Attributes
    ----------
    trajectories
        What it is over.
    stop
        Frame before which it stops.
    pairs
        Where pairs are kept from one update to the next, if the user named no place; None: nowhere.
    last
        Whether there is none after it.
    new
        Whether there are more frames than in the one before.
    told
        For the record.
    """

    trajectories: Sequence[Path]
    stop: int
    pairs: Path | None
    last: bool
    new: bool
    told: Mapping[str, Any] = field(default_factory=dict)

    def job(self, job: Job) -> Job:
        """Return what it does of a live run's job; it has the analyses as they were given."""
        return replace(
            job,
            analyses=copy.deepcopy(job.analyses),
            trajectories=self.trajectories,
            stop=self.stop,
            between=self.pairs,
            quiet=job.quiet or not self.last,
            live=self.told,
        )


def go_live(
    world: World,
    live: LiveJob,
    quiet: bool,
    run: Callable[[Update], T],
    ready: Callable[[], object] = lambda: None,
) -> T:
    """Run over what has come, again and again, and at the end over all; return what the last run gave.

    Parameters
    ----------
    world
        The ranks that a launcher started, or this process alone.
    live
        What was asked; the same on every rank.
    quiet
        Say nothing.
    run
        Does one run, collectively.
    ready
        Waits until what runs is ready; an engine begins then.

    Raises
    ------
    UsageError, TrajectoryError
        If no frame came.
    """
    between = pairs_between(world, live.pairs, live.out, quiet)
    with _interruptible(quiet) as asked, _feeding(world, live) as feed, between as pairs:
        import_ahead()
        ready()
        if feed is not None:
            feed.begin()
        watching = _Watching(world, live, feed, asked)
        done = count = 0
        while True:
            seen = watching.wait(done)
            stop = watching.target(seen, done)
            trajectories = [Path(seen.told["dataset"])] if "dataset" in seen.told else live.trajectories
            last = bool(seen.over)
            count += 1
            with _telling_what_is_kept(world, seen):
                outcome = run(Update(trajectories, stop, pairs, last, stop > done, {**seen.told, "updates": count}))
            if last:
                if not quiet and world.comm.rank == 0:
                    _say_end(seen)
                return outcome
            done = stop
            if feed is not None:
                feed.analysed(done)


@contextmanager
def _telling_what_is_kept(world: World, seen: Seen) -> Iterator[None]:
    try:
        yield
    except HimachError:
        if "dataset" in seen.told and world.comm.rank == 0:
            say(f"himach: the frames that came are kept as dataset {seen.told['dataset']}", sys.stderr)
        raise


def nothing(world: World) -> None:
    """Do nothing, as work of ranks: they are ready when it is done."""


def give_way(world: World) -> None:
    """Do the same with ranks of this run's own: where the processors are few, the engine is served first."""
    os.nice(NICE)
    with suppress(OSError):  # the kernel may weigh sessions first, and these ranks have one of their own
        Path("/proc/self/autogroup").write_text(str(NICE))


class _Watching:
    """Looks at what has come, on all ranks together."""

    def __init__(self, world: World, live: LiveJob, feed: Feed | None, asked: threading.Event) -> None:
        self._comm = world.comm
        self._live = live
        self._slices = live.slices(world)
        self._feed = feed
        self._asked = asked
        self._stopped = False

    def wait(self, done: int) -> Seen:
        """Wait until there is something to do; all ranks see the same."""
        while True:
            seen = self._look()
            if seen.over:
                on_first_rank(self._comm, partial(self._check_some, seen, done))
                return seen
            target = self.target(seen, done)
            reached = self._live.stop is not None and 0 <= self._live.stop <= seen.frames
            if (reached or self._asked_anywhere()) and not self._stopped:
                self._stopped = True
                if self._feed is not None:
                    self._feed.stop()
            elif target > done and not self._stopped:
                if self._chosen(target):
                    return seen
                if self._feed is not None:  # those before the first that is chosen
                    self._feed.analysed(target)
            time.sleep(LOOK)

    def target(self, seen: Seen, done: int) -> int:
        """Return before which frame the next run stops."""
        frames, every, stop = seen.frames, self._live.every, self._live.stop
        if stop is not None and stop >= 0:
            frames = min(frames, stop)
        if seen.over:
            return frames
        whole = 0 if every is None else frames // every * every
        return frames if seen.late and whole <= done else whole

    def _check_some(self, seen: Seen, done: int) -> None:
        if not self._chosen(self.target(seen, done)):
            raise TrajectoryError(f"there is no frame to analyse: {seen.over}")

    def _chosen(self, stop: int) -> int:
        """Return how many frames are chosen of those before `stop`."""
        return len(range(*slice(self._live.start, stop, self._live.step).indices(stop)))

    def _asked_anywhere(self) -> bool:
        return any(self._comm.allgather(self._asked.is_set()))

    def _look(self) -> Seen:
        feed = self._feed
        if self._slices is not None:
            self._slices.look()
        mine = on_every_rank(self._comm, lambda: Seen() if feed is None else feed.look())
        told = [one for one in self._comm.allgather(mine if feed is not None else None) if one is not None]
        if all(one.missing for one in told):

            def refuse() -> None:
                raise UsageError(told[0].missing)

            on_every_rank(self._comm, refuse)
        return _combined(told)


def _combined(told: Sequence[Seen]) -> Seen:
    """Return what several nodes have seen together."""
    frames = max(one.frames for one in told)
    held = [one.held for one in told if one.held is not None]
    if held:
        from pyroaring import BitMap64

        union = BitMap64.union(BitMap64(), *map(BitMap64.deserialize, held))
        # The first that is missing is the first that has fewer below it than it should.
        frames = bisect_left(range(len(union)), True, key=lambda number: union.rank(number) <= number)
    over = next((one.over for one in told if one.over), "") if all(one.over for one in told) else ""
    return Seen(frames, any(one.late for one in told), over, told=told[0].told)


@contextmanager
def _feeding(world: World, live: LiveJob) -> Iterator[Feed | None]:
    feed = on_every_rank(world.comm, lambda: live.feed(world))
    try:
        yield feed
    finally:
        if feed is not None:
            feed.close()


@contextmanager
def _interruptible(quiet: bool) -> Iterator[threading.Event]:
    """Have the first Ctrl-C set the event, which ends what comes, and the second interrupt."""
    asked = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield asked
        return

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        if asked.is_set():
            before(signum, frame)
            return
        asked.set()
        if not quiet:
            say(
                "himach: no more frames are taken, the outcome of those that came follows; Ctrl-C again interrupts",
                sys.stderr,
            )

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked
    finally:
        if signal.getsignal(signal.SIGINT) is on_interrupt:
            signal.signal(signal.SIGINT, before)


def _say_end(seen: Seen) -> None:
    """Say why it ended, where frames are, and what an engine or its frames had to suffer."""
    told = seen.told
    lines = [f"himach: {seen.over}, after {seen.frames:,} frames"]
    if "dataset" in told:
        lines[0] += f", kept as dataset {told['dataset']}"
    if told.get("pauses"):
        lines.append(f"himach: warning: the engine was paused {told['pauses']} times, {told['paused']:.1f} s in all")
    if told.get("left_out"):
        lines.append(f"himach: warning: {told['left_out']:,} frames were left out while the analysis was late")
    for line in lines:
        say(line, sys.stderr)
