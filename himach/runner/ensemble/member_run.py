"""The run of one member: `MemberRunner`, and its result `MemberRun`.

`each_member()` distributes members: all ranks together run large ones, one rank each runs the others.
"""

import copy
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from himach.errors import AnalysisError, HimachError, StateError, TimeUpError, as_himach
from himach.io.datasets.lookup import find, list_names, open_cache
from himach.io.datasets.member import Member
from himach.io.datasets.request import FramesRequest
from himach.output.claim import FOLDER, PAIRS
from himach.output.directory import write_features
from himach.output.file_names import lasting_name
from himach.ranks.collective import Meeting, is_everywhere, on_first_rank, run_collectively
from himach.ranks.communicator import World, alone
from himach.ranks.launch.memory import MIN_LIMIT_BYTES, default_memory
from himach.ranks.process_exit import is_interruption
from himach.ranks.progress import Progress
from himach.runner.kept_pairs import unrequested_keep_time
from himach.runner.options import Job
from himach.runner.place import OutcomePlace
from himach.runner.rank import one_thread, perform
from himach.runner.rank_run import EnsembleContext

T = TypeVar("T")
GATHERS = 16  # messages in which a rank sends its members' results


def each_member(
    world: World, job: FramesRequest, members: Sequence[Member], work: Callable[[World, int], T], quiet: bool
) -> list[T]:
    """Call `work` for every member, on all ranks together or on one alone (collective).

    The first rank gets the results in the order of members, the others get their own.
    """
    comm = world.comm
    own_world = replace(alone(), name=world.name, nodes=(world.name,), library=world.library)
    meeting = Meeting(comm)
    done: dict[int, T] = {}

    def work_alone(display: Progress) -> None:
        while (number := next(counter)) < len(queue):
            done[queue[number]] = work(own_world, queue[number])
            display(len(done))
            meeting.poll()

    large, queue = distribute(world, job, members)
    counter = world.make_counter()  # by which ranks take members of their node's queue
    progress = Progress(comm, len(members), sys.stderr, quiet, "member")
    try:
        with one_thread(), progress as display:
            for at in large:
                result = work(world, at)
                if comm.rank == 0:
                    done[at] = result
                    display(len(done))
            meeting.together(partial(work_alone, display))
    except TimeUpError as error:
        if comm.size > 1 and not is_everywhere(error):
            raise
        count = comm.allreduce(len(done))
        raise TimeUpError(f"{count} of {len(members)} members are done; of the first that is not, {error}") from error
    for part in range(GATHERS):  # as a message lies beside what it brings
        own = {} if comm.rank == 0 else {at: result for at, result in done.items() if at % GATHERS == part}
        for results in comm.gather(own) or ():
            done.update(results)
    return [done[at] for at in sorted(done)]


def attempt(world: World, member: Member, work: Callable[[], T]) -> T | HimachError:
    """Return the result of `work` for a member, or the member's error; raise errors that end the whole run."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda *arguments, **options: None  # the ensemble shows warnings of all members together
        try:
            return work()
        except (TimeUpError, StateError) as error:
            if world.comm.size > 1:
                raise
            raise type(error)(str(error)) from error  # only the rank that runs the member has this error
        except Exception as error:
            if is_interruption(error) or (world.comm.size > 1 and not is_everywhere(error)):
                raise
            himach_error = as_himach(error)
            return type(himach_error)(f"member {member.name} failed: {himach_error}")


def distribute(world: World, job: FramesRequest, members: Sequence[Member]) -> tuple[list[int], list[int]]:
    """Return the positions of members that all ranks run together, and of those that single ranks of this node run.

    Each of the latter goes to the node whose cache has most of it; the largest come first (collective).
    """
    comm = world.comm
    sizes = on_first_rank(comm, partial(_sizes, members), share=True)
    large = large_members(sizes, comm.size)
    small = sorted(set(range(len(members))) - set(large), key=lambda at: (-sizes[at], at))
    homes = _homes(world, job, [members[at] for at in small], [sizes[at] for at in small])
    return large, [at for at, home in zip(small, homes, strict=True) if home == world.node_index]


def large_members(sizes: Sequence[float], ranks: int) -> list[int]:
    """Return the positions of the members that all ranks run together, given their bytes."""
    least = max(WORTH, sum(sizes) / (LARGE * ranks))
    return [index for index, size in enumerate(sizes) if size > least and ranks > 1]


def _sizes(members: Sequence[Member]) -> list[float]:
    """Return the bytes of each member's files, with the median size for a member without files here."""
    known_sizes = [_bytes(member.trajectories) for member in members]
    usual = float(np.median([size for size in known_sizes if size] or [1.0]))
    return [size or usual for size in known_sizes]


def _bytes(files: Sequence[Path]) -> float:
    try:
        paths = [path for file in files for path in (file.iterdir() if file.is_dir() else [file])]
        return float(sum(file.stat().st_size for file in paths))
    except OSError:
        return 0.0


def _homes(world: World, job: FramesRequest, members: Sequence[Member], sizes: Sequence[float]) -> list[int]:
    """Return each member's node, the largest first: the one with most of it cached, unless its load is too high."""
    n = len(world.nodes)
    if n == 1:
        return [0] * len(members)
    cached = run_collectively(world.comm, lambda: _cached(world, job, members))
    cached_counts = np.array([counts for counts in world.comm.allgather(cached) if counts is not None])
    ranks = np.array([len(ranks) for ranks in world.node_ranks])
    capacity = 1.1 * sum(sizes) / ranks.sum() * ranks + max(sizes, default=0.0)
    assigned = np.zeros(n)
    homes = []
    for at, size in enumerate(sizes):
        room = assigned + size <= capacity
        home = int(np.argmax(cached_counts[:, at] * room))
        if not cached_counts[home, at] or not room[home]:
            home = int(np.argmin((assigned + size) / ranks))
        assigned[home] += size
        homes.append(home)
    return homes


def _cached(world: World, job: FramesRequest, members: Sequence[Member]) -> list[int] | None:
    """Return how many frames of each member this node's store has; None except on a node's first rank."""
    if world.leaders is None:
        return None
    store, _ = open_cache(job.cache)
    if store is None:
        return [0] * len(members)
    return [
        max((data.frames for data in find(store, list_names(member.trajectories))), default=0) for member in members
    ]


#: Fields of a member's record that the ensemble's record uses.
RECORD_FIELDS = ("frames", "faulty", "reused", "assignment", "bytes", "pairs", "seconds", "dataset", "system")
#: Phases whose times are summed over a rank's members.
PHASES = ("zazen", "map", "shuffle", "reduce", "finish")
#: A member is large above 1 / LARGE of a rank's even share; smaller ones even each other out.
LARGE = 4
#: Bytes of a trajectory above which it is worth synchronising all ranks.
WORTH = 32 << 20
#: Check what map() changes in every member until one succeeds, then in every N-th: it costs as much as 100 frames.
GUARDED = 10


@dataclass(frozen=True)
class MemberRun:
    """Result of a member's run."""

    outcomes: Sequence[Any] = ()  # one per analysis
    record: Mapping[str, Any] = field(default_factory=dict)  # `RECORD_FIELDS` of its record
    error: HimachError | None = None  # None if it did not fail
    warned: Sequence[str] = ()  # its warnings
    full_record: Mapping[str, Any] | None = None  # its whole record, for one member of each rank
    files: Sequence[str] = ()  # written by `write_features`

    def __iter__(self) -> Iterator[Any]:
        return iter((self.outcomes, self.record))  # as `himach.result.Members` takes them


@dataclass
class MemberRunner:
    """Runs members, each with its own copy of the analyses; an error concerns only its member."""

    job: Job  # of the ensemble
    place: OutcomePlace  # of the ensemble's outcome
    members: Sequence[Member]  # all of the ensemble
    ranks: int  # on this node
    started: float  # `time.time()` at which the user started the run
    common: EnsembleContext  # what its members share on this rank
    travels: bool = False  # whether outcomes are gathered from several ranks
    has_full_record: bool = False  # whether a successful member has returned its whole record
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))  # of this rank's members

    def run(self, world: World, at: int) -> MemberRun:
        """Run the member at position `at` on the ranks of `world`."""
        member = self.members[at]
        self.common.guarded = world.comm.size > 1 or not self.has_full_record or at % GUARDED == 0
        result = attempt(world, member, partial(self._run_member, world, member))
        return MemberRun(error=result) if isinstance(result, HimachError) else result

    def _run_member(self, world: World, member: Member) -> MemberRun:
        folder = lasting_name(member.name)
        memory = self._memory if world.comm.size > 1 else max(MIN_LIMIT_BYTES, self._memory // self.ranks)
        done = perform(world, self._member_job(member, folder, memory), self.started, self.common)
        outcomes, record, files = done.outcomes or (), done.record, None
        if self.job.features and self.place.staged is not None:
            write = partial(write_features, self.place.staged, folder, self.place.labels, outcomes)
            files = on_first_rank(world.comm, write)
        if self.travels:
            _check_picklable(outcomes)
        self.seconds = {name: seconds + record["seconds"][name] for name, seconds in self.seconds.items()}
        full, self.has_full_record = None if self.has_full_record else record, True
        fields = {name: record[name] for name in RECORD_FIELDS}
        return MemberRun(outcomes, fields, None, record["warnings"], full, files or ())

    @cached_property
    def _memory(self) -> int:
        return int(self.job.memory or default_memory())

    def _member_job(self, member: Member, folder: str, memory: int) -> Job:
        """Return the job of a member's run, which keeps its pairs in `folder`."""
        job, out, between = self.job, self.place.path, None
        own = member_job(job, member)
        if job.between is not None:
            between = job.between / folder
        elif out is not None and job.pairs is None:
            between = out / FOLDER / PAIRS / folder
            if time.time() < unrequested_keep_time(own, self.started) and not between.exists():
                between = None  # checking whether kept pairs can be used takes as long as some map phases
        pairs = None if job.pairs is None else job.pairs / folder
        return replace(own, memory=memory, pairs=pairs, between=between)


def member_job(job: Job, member: Member) -> Job:
    """Return the job of a member's run, with its own copy of the analyses and without output."""
    return replace(
        job,
        analyses=copy.deepcopy(job.analyses),
        ensemble=None,
        trajectories=member.trajectories,
        topology=None if member.topology is None else Path(member.topology),
        **member.choice,
        pairs=None,
        out=None,
        quiet=True,
        member=member.name,
        features=False,
        drawer=None,
    )


def _check_picklable(outcomes: Sequence[Any] | None) -> None:
    try:
        pickle.dumps(outcomes)
    except Exception as error:
        raise AnalysisError(
            f"its outcome cannot be sent to the first rank ({type(error).__name__}: {error}); return tables, arrays or "
            "plain values from finish()"
        ) from error
