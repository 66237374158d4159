"""A run over arriving frames: `go_live()` runs repeatedly over the frames so far, and maps only new ones."""

import signal
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from pyroaring import BitMap64

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.datasets.member import Member, read_members, truncate
from himach.io.trajectories.urls.url_names import refuse_urls
from himach.output.record import Record
from himach.planning.half_width import HalfWidth
from himach.ranks.collective import on_first_rank, run_collectively
from himach.ranks.communicator import Communicator, World
from himach.ranks.launch.preload import preload
from himach.ranks.quiet import say
from himach.runner.live.feeds import DatasetFeed, EngineFeed, Feed, FileFeed, FramesSoFar, find_engines
from himach.runner.live.scratch_pairs import pairs_between
from himach.runner.options import LiveOptions, RunOptions, Update
from himach.staging.assemble import SliceAssembler

T = TypeVar("T")

POLL_SECONDS = 0.05  # seconds between polls of the feed
# Intervals must be narrow at this many outcomes in a row: a run that ends at the first one selects intervals that are
# too narrow by chance. They then contain the truth in only 81 to 92 of 100 runs, instead of 92 to 96.
NARROW_OUTCOMES = 3


def check_live(request: RunOptions, live: LiveOptions) -> None:
    """Raise UsageError if the request or its options are invalid."""
    engines = find_engines(request)
    if request.ensemble is not None and not engines:
        raise UsageError(
            "members of an ensemble are followed where they are running engines, imd://HOST:PORT; follow each file by "
            "a run of its own, and run the ensemble over what they leave"
        )
    refuse_urls(request.trajectories, "such files are not followed while they grow; run again when it is whole")
    for name in () if engines else ("dataset", "buffer", "stride_when_late"):
        if getattr(live, name) is not None:
            raise UsageError(f"{name} is for the frames of a running engine, imd://HOST:PORT")
    if engines and request.cache == "off":
        raise UsageError("a live run keeps its frames in this node's store: cache 'off' makes no sense here")
    if engines and find_spec("imdclient") is None:
        raise UsageError("frames of a running engine need imdclient: pip install 'himach[live]'")
    for name in ("start", "stop", "step"):
        if isinstance(getattr(request, name), str):
            raise UsageError(f"{name} is a time: frames that still come are chosen by their numbers")
    for name in ("every", "stride_when_late"):
        number = getattr(live, name)
        if number is not None and number < 1:
            raise UsageError(f"{name} is {number}; it is a number of frames from 1 on")
    if live.until is not None:
        _check_until(HalfWidth.parse(live.until), request, live)
    if live.idle is not None and live.idle <= 0:
        raise UsageError(f"idle is {live.idle}; it is a number of seconds above 0")


def _check_until(until: HalfWidth, request: RunOptions, live: LiveOptions) -> None:
    if request.ensemble is not None:
        raise UsageError("until is about the intervals of one simulation: leave it out for an ensemble")
    if live.every is None:
        raise UsageError(f"until {until} is looked at when there is an outcome: say every how many frames (every)")
    if request.confidence == "off":
        raise UsageError(f"until {until} is about intervals, and confidence is 'off'")


def _make_feed(world: World, request: RunOptions, live: LiveOptions) -> Feed:
    """Return the feed that this rank polls: of a dataset each node's first rank, of the rest the first rank."""
    make: Callable[[], Feed]
    polls = world.comm.rank == 0
    if request.engines:
        make = partial(EngineFeed, request, live)
    elif len(request.trajectories) > 1 or request.trajectories[0].expanduser().exists():
        make = partial(FileFeed, request, live.idle)
    else:
        make, polls = partial(DatasetFeed, request.trajectories[0], request.cache, live.idle), world.leaders is not None
    return make() if polls else Feed()


def go_live(
    world: World,
    request: RunOptions,
    live: LiveOptions,
    run: Callable[[Update], tuple[T, Record | None]],
    ready: Callable[[], object] = lambda: None,
) -> T:
    """Run repeatedly over the frames so far, and finally over all; return the result of the last run.

    `ready` waits until the ranks of `run` have started; only then an engine begins.
    """
    with (
        _interruptible(request.quiet) as interrupted,
        closing(run_collectively(world.comm, partial(_make_feed, world, request, live))) as feed,
        pairs_between(world, request.pairs, request.out, request.quiet) as pairs,
    ):
        preload(own=False)
        ready()
        feed.start()
        is_dataset = world.comm.bcast(isinstance(feed, DatasetFeed))
        slices = SliceAssembler(world, request.cache, request.trajectories[0]) if is_dataset else None
        watcher = _Watcher(world.comm, request, live, feed, slices, interrupted)
        done = count = 0
        while True:
            so_far, stop = watcher.wait(done)
            count += 1
            details = {**so_far.details, "updates": count, **watcher.details}
            frames = _frames_so_far(request, so_far, stop)
            try:
                outcome, record = run(Update(frames, pairs, details, bool(so_far.over), stop > done))
            except HimachError:
                if (names := _datasets(so_far)) and world.comm.rank == 0:
                    say(f"himach: the frames that came are kept as {names}", sys.stderr)
                raise
            if so_far.over:
                if not request.quiet and world.comm.rank == 0:
                    _say_end(so_far)
                return outcome
            done = stop
            watcher.check_width(record)
            feed.analysed(done)


def _frames_so_far(request: RunOptions, so_far: FramesSoFar, stop: int) -> dict[str, Any]:
    """Return the request fields that select the frames before `stop`.

    Of an ensemble they name its members with their frames so far, without engines that have none yet.
    """
    if so_far.members is None or request.ensemble is None:
        dataset = so_far.details.get("dataset")
        return {"trajectories": request.trajectories if dataset is None else [Path(dataset)], "stop": stop}
    members: list[Member] = []
    for member in read_members(request.ensemble, request.topology):
        count = so_far.members.get(member.name)
        if count is None:  # no engine
            members.append(member)
        elif count or so_far.over:
            end = request.stop if member.stop is None else member.stop
            end = count if end is None or end < 0 else min(count, end)
            dataset = Path(so_far.details["members"][member.name]["dataset"]) if count else member.trajectory
            members.append(replace(member, trajectory=dataset, stop=end))
    return {"ensemble": members}


def _datasets(so_far: FramesSoFar) -> str:
    """Return text that names the datasets of engines' frames; "" for other sources."""
    feeds = so_far.details.get("members", {"": so_far.details}).values()
    names = [details["dataset"] for details in feeds if "dataset" in details]
    return f"dataset{'s' * (len(names) > 1)} {truncate(names)}" if names else ""


def start_ranks(world: World) -> None:
    """Do nothing: when this work is done, the ranks have started."""


@dataclass
class _Watcher:
    """Polls the feed, on all ranks together."""

    comm: Communicator
    request: RunOptions
    live: LiveOptions
    feed: Feed
    slices: SliceAssembler | None  # of a dataset that is being pushed
    interrupted: threading.Event
    details: dict[str, Any] = field(default_factory=dict)  # about `until`, for the record
    narrow: int = 0  # consecutive outcomes with narrow intervals
    stopped: bool = False

    def wait(self, done: int) -> tuple[FramesSoFar, int]:
        """Wait until an update is due; return the frames so far and where those to analyse end, on all ranks."""
        while True:
            so_far = self._poll()
            stop = self._target(so_far, done)
            if so_far.over:
                if not self._chosen(stop):
                    self._refuse(TrajectoryError(f"there is no frame to analyse: {so_far.over}"))
                return so_far, stop
            if not self.stopped and self._is_enough(so_far):
                self.stopped = True
                self.feed.stop()
            if stop > done and not self.stopped:
                if self._chosen(stop):
                    return so_far, stop
                self.feed.analysed(stop)  # no frame before it is selected
            time.sleep(POLL_SECONDS)

    def _is_enough(self, so_far: FramesSoFar) -> bool:
        """Return whether no more frames are needed: all have come, intervals are narrow, or the user says so."""
        least = min((so_far.members or {"": so_far.frames}).values())
        reached = self.request.stop is not None and 0 <= self.request.stop <= least
        return reached or self.narrow >= NARROW_OUTCOMES or self.comm.allreduce(self.interrupted.is_set()) > 0

    def check_width(self, record: Record | None) -> None:
        """Measure the intervals of an outcome by its record, which the first rank has."""
        if self.live.until is None:
            return
        until, estimates = HalfWidth.parse(self.live.until), (record or {}).get("uncertainty") or {}
        width = on_first_rank(self.comm, partial(until.observed, estimates), share=True)
        self.narrow = self.narrow + 1 if width < until.most else 0
        self.details = {"until": str(until), "half_width": width}
        if self.narrow == NARROW_OUTCOMES and not self.request.quiet and self.comm.rank == 0:
            say(
                f"himach: intervals of {until.table}.{until.column} are within ±{width:.3g}: no more frames are taken",
                sys.stderr,
            )

    def _target(self, so_far: FramesSoFar, done: int) -> int:
        """Return the exclusive end of the next run's frames."""
        frames, every, stop = so_far.frames, self.live.every, self.request.stop
        if so_far.members is not None:
            due = so_far.over or so_far.late or (every is not None and frames // every > done // every)
            return frames if due else done
        if stop is not None and stop >= 0:
            frames = min(frames, stop)
        if so_far.over:
            return frames
        whole = 0 if every is None else frames // every * every
        return frames if so_far.late and whole <= done else whole

    def _chosen(self, stop: int) -> int:
        """Return how many frames before `stop` are selected; for an ensemble, how many have arrived."""
        if self.request.ensemble is not None:
            return stop
        return len(range(*slice(self.request.start, stop, self.request.step).indices(stop)))

    def _poll(self) -> FramesSoFar:
        if self.slices is not None:
            self.slices.poll()
        own = run_collectively(self.comm, self.feed.poll)
        states = [state for state in self.comm.allgather(own) if state is not None]
        if states[0].error is not None and all(state.error for state in states):
            self._refuse(states[0].error)
        return _combine(states)

    def _refuse(self, error: HimachError) -> None:
        """Raise an error that all ranks know of, so that each knows that the others raise it, too."""

        def refuse() -> None:
            raise error

        run_collectively(self.comm, refuse)


def _combine(states: Sequence[FramesSoFar]) -> FramesSoFar:
    frames = max(state.frames for state in states)
    stored = [state.stored for state in states if state.stored is not None]
    if stored:
        union = BitMap64.union(BitMap64(), *map(BitMap64.deserialize, stored))
        # The first missing number is the first n for which at most n numbers are <= n.
        frames = bisect_left(range(len(union)), True, key=lambda number: union.rank(number) <= number)
    over = next((state.over for state in states if state.over), "") if all(state.over for state in states) else ""
    late = any(state.late for state in states)
    return FramesSoFar(frames, late, over, details=states[0].details, members=states[0].members)


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
