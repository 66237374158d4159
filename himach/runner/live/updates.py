"""A run over arriving frames: `go_live()` runs repeatedly over the frames so far, and maps only new ones."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.datasets.member import truncate
from himach.io.datasets.request import FramesRequest
from himach.io.push.address import EngineAddress
from himach.io.trajectories.urls.names import refuse_urls
from himach.output.record import Record
from himach.planning.half_width import HalfWidth
from himach.ranks.collective import on_first_rank, run_collectively
from himach.ranks.communicator import World
from himach.ranks.launch.preload import preload
from himach.ranks.quiet import say
from himach.runner.live.ensemble_feed import EnsembleFeed, check_ensemble, engine_among, members_so_far
from himach.runner.live.frame_sources import DatasetFeed, FileFeed, FramesSoFar
from himach.runner.live.imd_client import ImdClient, ReceiverOptions, need_imdclient
from himach.runner.live.scratch_pairs import pairs_between
from himach.runner.options import LiveOptions, RunOptions
from himach.staging.assembly.assemble import SliceAssembler

T = TypeVar("T")
LiveSource: TypeAlias = DatasetFeed | EnsembleFeed | FileFeed | ImdClient

POLL_SECONDS = 0.05  # seconds between polls of the feed
NICENESS = 10  # added to the niceness of ranks that live runs start
# Intervals must be narrow at this many outcomes in a row: a run that ends at the first one selects intervals that are
# too narrow by chance. They then contain the truth in only 81 to 92 of 100 runs, instead of 92 to 96.
NARROW_OUTCOMES = 3


@dataclass(frozen=True)
class Update:
    """One of the runs of a live run."""

    frames: Mapping[str, Any]  # fields of the request that select the frames so far
    pairs: Path | None  # directory for pairs between updates; None if there is none or the user named one
    details: Mapping[str, Any]  # for the record
    last: bool
    new: bool  # whether there are more frames than in the previous update

    def changes(self, quiet: bool) -> dict[str, Any]:
        """Return the `Job` fields in which this update differs from the live run, whose `quiet` is given."""
        return {**self.frames, "between": self.pairs, "live": self.details, "quiet": quiet or not self.last}


def check_live(request: FramesRequest, live: LiveOptions) -> None:
    """Raise UsageError if the request or its options are invalid."""
    if request.ensemble is not None:
        check_ensemble(request, live)
    refuse_urls(request.trajectories, "such files are not followed while they grow; run again when it is whole")
    engine = "these engines" if request.ensemble is not None else _engine(request)
    if engine is None:
        for name in ("dataset", "buffer", "stride_when_late"):
            if getattr(live, name) is not None:
                raise UsageError(f"{name} is for the frames of a running engine, imd://HOST:PORT")
    else:
        if len(request.trajectories) > 1:
            raise UsageError(f"{engine} is followed by no other trajectory, and follows none")
        if request.topology is None and request.ensemble is None:
            raise UsageError(f"{engine} tells positions alone: name a topology file, too (--topology)")
        if request.cache == "off":
            raise UsageError("a live run keeps its frames in this node's store: cache 'off' makes no sense here")
        need_imdclient()
    _check_numbers(request, live)
    if live.until is not None:
        _check_until(request, live)
    if live.idle is not None and live.idle <= 0:
        raise UsageError(f"idle is {live.idle}; it is a number of seconds above 0")


def _check_numbers(request: FramesRequest, live: LiveOptions) -> None:
    for name in ("start", "stop", "step"):
        if isinstance(getattr(request, name), str):
            raise UsageError(f"{name} is a time: frames that still come are chosen by their numbers")
    for name in ("every", "stride_when_late"):
        number = getattr(live, name)
        if number is not None and number < 1:
            raise UsageError(f"{name} is {number}; it is a number of frames from 1 on")


def _check_until(request: FramesRequest, live: LiveOptions) -> None:
    until = HalfWidth.parse(live.until or "")
    if live.every is None:
        raise UsageError(f"until {until} is looked at when there is an outcome: say every how many frames (every)")
    if isinstance(request, RunOptions) and request.confidence == "off":
        raise UsageError(f"until {until} is about intervals, and confidence is 'off'")


def _engine(request: FramesRequest) -> EngineAddress | None:
    """Return the request's engine; None for other sources and for ensembles."""
    return None if request.ensemble is not None else engine_among(request.trajectories)


def _feed(world: World, request: FramesRequest, live: LiveOptions) -> LiveSource | None:
    """Return the feed that this rank polls; None if another rank polls it."""
    engine = _engine(request)
    first = world.comm.rank == 0
    if request.ensemble is not None:
        return EnsembleFeed(request, live) if first else None
    if engine is not None:
        return ImdClient(ReceiverOptions.for_engine(engine, request, live)) if first else None
    if len(request.trajectories) > 1 or request.trajectories[0].expanduser().exists():
        return FileFeed(request.trajectories, request.topology, request.keywords, live.idle) if first else None
    return DatasetFeed(request.trajectories[0], request.cache, live.idle) if world.leaders is not None else None


def _slices(world: World, request: FramesRequest, feed: LiveSource | None) -> SliceAssembler | None:
    """Return the assembler of slices that arrive for a dataset; None for other sources (collective)."""
    if not world.comm.bcast(isinstance(feed, DatasetFeed)):
        return None
    return SliceAssembler(world, request.cache, request.trajectories[0])


def go_live(
    world: World,
    request: FramesRequest,
    live: LiveOptions,
    run: Callable[[Update], tuple[T, Record | None]],
    ready: Callable[[], object] = lambda: None,
) -> T:
    """Run repeatedly over the frames so far, and finally over all; return the result of the last run.

    `ready` waits until the ranks of `run` have started; only then an engine begins.
    """
    between: AbstractContextManager[Path | None] = nullcontext()
    if isinstance(request, RunOptions):
        between = pairs_between(world, request.pairs, request.out, request.quiet)
    with _interruptible(request.quiet) as interrupted, _feeding(world, request, live) as feed, between as pairs:
        preload()
        ready()
        if feed is not None:
            feed.start()
        watcher = _Watcher(world, request, live, feed, interrupted)
        done = count = 0
        while True:
            so_far = watcher.wait(done)
            stop = watcher.target(so_far, done)
            last = bool(so_far.over)
            count += 1
            with _reporting_kept_frames(world, so_far):
                details = {**so_far.details, "updates": count, **watcher.details}
                frames = _frames_so_far(request, so_far, stop)
                outcome, record = run(Update(frames, pairs, details, last, stop > done))
            if last:
                if not request.quiet and world.comm.rank == 0:
                    _say_end(so_far)
                return outcome
            done = stop
            watcher.check_width(record)
            if feed is not None:
                feed.analysed(done)


def _frames_so_far(request: FramesRequest, so_far: FramesSoFar, stop: int) -> dict[str, Any]:
    """Return the request fields that select the frames before `stop`, or the members of an ensemble so far."""
    members = members_so_far(request, so_far)
    if members is not None:
        return {"ensemble": members}
    dataset = so_far.details.get("dataset")
    return {"trajectories": request.trajectories if dataset is None else [Path(dataset)], "stop": stop}


@contextmanager
def _reporting_kept_frames(world: World, so_far: FramesSoFar) -> Iterator[None]:
    try:
        yield
    except HimachError:
        if (names := _datasets(so_far)) and world.comm.rank == 0:
            say(f"himach: the frames that came are kept as {names}", sys.stderr)
        raise


def _datasets(so_far: FramesSoFar) -> str:
    """Return text that names the datasets of engines' frames; "" for other sources."""
    feeds = so_far.details["members"].values() if "members" in so_far.details else [so_far.details]
    names = [feed_details["dataset"] for feed_details in feeds if "dataset" in feed_details]
    return f"dataset{'s' * (len(names) > 1)} {truncate(names)}" if names else ""


def start_ranks(world: World) -> None:
    """Do nothing: when this work is done, the ranks have started."""


def give_way(world: World) -> None:
    """Lower the priority of this run's own ranks, so that the engine runs first where processors are few."""
    if world.comm.rank == 0:  # the process group has the other ranks, and the process that forks later ones
        os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        with suppress(OSError):  # the kernel may weigh sessions first, and these ranks have their own session
            Path("/proc/self/autogroup").write_text(str(NICENESS))


class _Watcher:
    """Polls the feed, on all ranks together."""

    def __init__(
        self,
        world: World,
        request: FramesRequest,
        live: LiveOptions,
        feed: LiveSource | None,
        interrupted: threading.Event,
    ) -> None:
        self.details: dict[str, Any] = {}  # about `until`, for the record
        self._comm = world.comm
        self._request = request
        self._every = live.every
        self._until = None if live.until is None else HalfWidth.parse(live.until)
        self._narrow = 0  # consecutive outcomes with narrow intervals
        self._slices = _slices(world, request, feed)
        self._feed = feed
        self._interrupted = interrupted
        self._stopped = False

    def wait(self, done: int) -> FramesSoFar:
        """Wait until an update is due; return the same on all ranks."""
        while True:
            so_far = self._poll()
            if so_far.over:
                on_first_rank(self._comm, partial(self._check_some, so_far, done))
                return so_far
            target = self.target(so_far, done)
            least = min((so_far.members or {"": so_far.frames}).values())
            reached = self._request.stop is not None and 0 <= self._request.stop <= least
            reached = reached or self._narrow >= NARROW_OUTCOMES
            if (reached or self._comm.allreduce(self._interrupted.is_set())) and not self._stopped:
                self._stopped = True
                if self._feed is not None:
                    self._feed.stop()
            elif target > done and not self._stopped:
                if self._chosen(target):
                    return so_far
                if self._feed is not None:  # no frame before `target` is selected
                    self._feed.analysed(target)
            time.sleep(POLL_SECONDS)

    def check_width(self, record: Record | None) -> None:
        """Measure the intervals of an outcome by its record, which the first rank has."""
        until = self._until
        if until is None:
            return

        def measure() -> float:
            assert record is not None
            return until.observed(record.get("uncertainty") or {})

        width = on_first_rank(self._comm, measure, share=True)
        self._narrow = self._narrow + 1 if width < until.most else 0
        self.details = {"until": str(until), "half_width": width}
        if self._narrow == NARROW_OUTCOMES and not self._request.quiet and self._comm.rank == 0:
            say(
                f"himach: intervals of {until.table}.{until.column} are within ±{width:.3g}: no more frames are taken",
                sys.stderr,
            )

    def target(self, so_far: FramesSoFar, done: int) -> int:
        """Return the exclusive end of the next run's frames."""
        frames, every, stop = so_far.frames, self._every, self._request.stop
        if so_far.members is not None:
            due = so_far.over or so_far.late or (every is not None and frames // every > done // every)
            return frames if due else done
        if stop is not None and stop >= 0:
            frames = min(frames, stop)
        if so_far.over:
            return frames
        whole = 0 if every is None else frames // every * every
        return frames if so_far.late and whole <= done else whole

    def _check_some(self, so_far: FramesSoFar, done: int) -> None:
        if not self._chosen(self.target(so_far, done)):
            raise TrajectoryError(f"there is no frame to analyse: {so_far.over}")

    def _chosen(self, stop: int) -> int:
        """Return how many frames before `stop` are selected; for an ensemble, how many have arrived."""
        if self._request.ensemble is not None:
            return stop
        return len(range(*slice(self._request.start, stop, self._request.step).indices(stop)))

    def _poll(self) -> FramesSoFar:
        feed = self._feed
        if self._slices is not None:
            self._slices.poll()
        own = run_collectively(self._comm, lambda: FramesSoFar() if feed is None else feed.poll())
        states = [state for state in self._comm.allgather(own if feed is not None else None) if state is not None]
        if all(state.missing for state in states):

            def refuse() -> None:
                raise UsageError(states[0].missing)

            run_collectively(self._comm, refuse)
        return _combine(states)


def _combine(states: Sequence[FramesSoFar]) -> FramesSoFar:
    frames = max(state.frames for state in states)
    stored = [state.stored for state in states if state.stored is not None]
    if stored:
        from pyroaring import BitMap64

        union = BitMap64.union(BitMap64(), *map(BitMap64.deserialize, stored))
        # The first missing number is the first n for which at most n numbers are <= n.
        frames = bisect_left(range(len(union)), True, key=lambda number: union.rank(number) <= number)
    over = next((state.over for state in states if state.over), "") if all(state.over for state in states) else ""
    late = any(state.late for state in states)
    return FramesSoFar(frames, late, over, details=states[0].details, members=states[0].members)


@contextmanager
def _feeding(world: World, request: FramesRequest, live: LiveOptions) -> Iterator[LiveSource | None]:
    feed = run_collectively(world.comm, lambda: _feed(world, request, live))
    try:
        yield feed
    finally:
        if feed is not None:
            feed.close()


@contextmanager
def _interruptible(quiet: bool) -> Iterator[threading.Event]:
    """Make the first Ctrl-C set the event, which stops the feed, and the second one interrupt."""
    interrupted = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield interrupted
        return

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            previous(signum, frame)
            return
        interrupted.set()
        if not quiet:
            say(
                "himach: no more frames are taken, the outcome of those that came follows; Ctrl-C again interrupts",
                sys.stderr,
            )

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        if signal.getsignal(signal.SIGINT) is on_interrupt:
            signal.signal(signal.SIGINT, previous)


def _say_end(so_far: FramesSoFar) -> None:
    """Report why the run ended, where its frames are, and how often engines paused or frames were left out."""
    lines = [f"himach: {so_far.over}, after {so_far.frames:,} frames"]
    if names := _datasets(so_far):
        lines[0] += f", kept as {names}"
    for name, stats in so_far.details.get("members", {"": so_far.details}).items():
        label = f"member {name}: " if name else ""
        if stats.get("pauses"):
            lines.append(
                f"himach: warning: {label}the engine was paused {stats['pauses']} times, {stats['paused']:.1f} s in all"
            )
        if stats.get("left_out"):
            lines.append(
                f"himach: warning: {label}{stats['left_out']:,} frames were left out while the analysis was late"
            )
    for line in lines:
        say(line, sys.stderr)
