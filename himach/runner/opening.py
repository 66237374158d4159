"""How the ranks of a run open the trajectory together: `open_job()` finds caches and origin, topology and first frame.

The first rank opens the origin for all, because N ranks would parse and index N times. Where the origin is away, a
node whose store has a stamp of it stands in.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import UsageError
from himach.parallel.collective import on_every_rank, on_first_rank
from himach.parallel.communicator import Communicator, World
from himach.runner.indexing.once import free, leave_behind, settle
from himach.runner.indexing.together import NodeBytes, walk_together
from himach.runner.options import Job
from himach.selection import Selected

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

    from himach.frame import RawFrame
    from himach.io.dataset.attachment import OriginFiles
    from himach.io.dataset.lookup import Candidate
    from himach.io.dataset.origin_stamp import OriginStamp
    from himach.io.dataset.origin_watch import OriginNote, OriginWatch
    from himach.io.server.client import Client
    from himach.io.server.served_store import ServedStore
    from himach.io.store.store import Dataset, Store
    from himach.io.trajectory.index.xdr_index import XdrIndex
    from himach.io.trajectory.origin import Origin
    from himach.runner.given.universe import Given


__all__ = ["Opened", "open_frames", "open_job", "warn_once"]


@dataclass
class Opened:
    """What a run works on.

    Attributes
    ----------
    origin
        Where the dataset is stored for good, or what a store knows of it (`origin.present` is false).
    topology
        With guessed attributes.
    frames
        The selected frame numbers.
    first
        The first of them.
    cached
        What this node's store holds, and where missed frames are kept; None without a cache.
    quota
        Bytes that the store may hold; 0: nothing is kept.
    pushed
        Whether a simulation pushed the dataset: then frames that are nowhere are left out.
    watch
        Looks to it that the origin stays what it was; None if it is away.
    dt
        Time between selected frames, ps; see `Origin.dt`.
    held
        What the node has in memory for all its ranks.
    noted
        Stamp of the origin, on the first rank; None where no cache asked for one.
    at
        `time.time()` at which frames could be read; topology and first frame came after that.
    """

    origin: Origin
    topology: Topology
    frames: Selected
    first: RawFrame
    cached: Dataset | Client | None
    quota: int
    watch: OriginWatch | None
    pushed: bool = False
    dt: float | None = None
    held: Sequence[NodeBytes] = ()
    noted: OriginStamp | None = None
    at: float = field(default_factory=time.time)

    def close(self) -> None:
        """Free what the node holds of the origin, from which no frame can be read any more (collective)."""
        free(self.origin, self.held)

    def stamp(self, keywords: Mapping[str, Any]) -> OriginStamp:
        """Return the stamp of the origin as it is (as it was last, where it is away). On the first rank."""
        from himach.io.dataset.origin_stamp import OriginStamp

        if self.noted is None:
            self.noted = OriginStamp.of(self.origin, keywords)
        return self.noted


@dataclass(frozen=True)
class _Choice:
    """What the first rank found out.

    Attributes
    ----------
    origin
        None if it is away.
    stamp
        Of the origin, as it is or was.
    note
        Of the origin as it is; None if it is away.
    name, generations
        Of the dataset in stores: the content is in any of these generations, and each store uses one.
    holder
        Rank whose store stands in for an origin that is away, and what it has there.
    """

    origin: Origin | None
    stamp: OriginStamp | None
    note: OriginNote | None
    name: str
    generations: Sequence[bytes]
    holder: tuple[int, Candidate] | None = None

    @property
    def pushed(self) -> bool:
        """Whether a simulation pushed the dataset."""
        return self.origin is None and self.stamp is not None and self.stamp.is_pushed


def open_frames(world: World, job: Job) -> Opened:
    """Open what the job works on: files and caches, or frames in the memory of a Universe (collective)."""
    if job.given is not None and job.given.frames is not None:
        return _open_memory(world, job, job.given)
    opened = open_job(world, job)
    if job.given is not None and job.given.n_frames != opened.origin.n_frames:
        counts = f"the Universe has {job.given.n_frames} frames, and the run sees {opened.origin.n_frames}"
        warn_once(world.comm, [f"{counts}: frames that a restart wrote again are dropped, and files may have grown"])
    return opened


def open_job(world: World, job: Job) -> Opened:
    """Open what a job works on (collective over the world).

    Raises
    ------
    UsageError, TrajectoryError
        On every rank, as `open_origin`, `load_topology`, `open_store` and `select` do.
    """
    comm = world.comm
    store = _open_store(comm, job.cache)
    quota = _choose_quota(comm, store)
    _assemble(world, store, job)
    speaks, held, reason = on_every_rank(comm, partial(_find, world, store, job))
    warn_once(comm, [reason] if reason else [])
    found = comm.gather((speaks, held))
    own = cache(partial(_own_indexes, job, store, held))
    left: dict[str, XdrIndex] = {}
    walked, shared = walk_together(world, job.trajectories, own)
    choice: _Choice = on_first_rank(comm, lambda: _choose(job, found, {**own(), **walked}, walked, left), share=True)
    memory = shared if choice.origin is None else [*shared, *settle(world, choice.origin, walked, own, left)]
    files = None if choice.holder is None else _send_files(comm, store, choice.holder)
    watch = _watch(world, choice)
    cached = _open_dataset(world, store, choice, job, quota)
    at = time.time()
    frames, origin, topology, first, dt = _look(world, job, choice, files, cached, quota > 0)
    return Opened(origin, topology, frames, first, cached, quota, watch, choice.pushed, dt, memory, choice.stamp, at)


def warn_once(comm: Communicator, reasons: Sequence[str]) -> None:
    """Warn on the first rank, with the first rank's reason that has one (collective)."""
    said = [reason for rank in comm.allgather(list(reasons)) for reason in rank]
    if said and comm.rank == 0:
        warnings.warn(said[0], stacklevel=2)


def _open_memory(world: World, job: Job, given: Given) -> Opened:
    """Open a job whose frames lie in the memory of a Universe; it has no cache (collective)."""
    from himach.io.trajectory.join import Part
    from himach.io.trajectory.origin import Origin
    from himach.runner.given.memory import MemoryFrames

    frames = given.frames
    assert isinstance(frames, MemoryFrames)
    facts = frames.facts()
    origin = Origin([Part(frames, frames.n_frames)], {}, facts)

    def looked() -> tuple[Selected, Topology, RawFrame, float | None]:
        selected = job.select(origin.n_frames)
        return selected, given.topology(), next(origin.read([selected[0]])), origin.dt(selected)

    def compared() -> None:
        if facts.fingerprint != first_facts.fingerprint:
            raise UsageError("the trajectory in memory is another one here than on the first rank; give all the same")

    selected, topology, first, dt = on_first_rank(world.comm, looked, share=True)
    first_facts = world.comm.bcast(facts)
    on_every_rank(world.comm, compared)
    return Opened(origin, topology, selected, first, None, 0, None, dt=dt)


def _open_store(comm: Communicator, choice: str) -> Store | ServedStore | None:
    if choice == "off":
        return None
    from himach.io.dataset.lookup import open_cache

    store, reason = on_every_rank(comm, partial(open_cache, choice))
    warn_once(comm, [reason] if reason else [])
    return store


def _choose_quota(comm: Communicator, store: Store | ServedStore | None) -> int:
    """Return how many bytes the store may hold; 0, with a warning, if the disk has no room for a segment."""
    from himach.io.store.quota import set_chosen_quota
    from himach.io.store.store import Store

    # There may be none, or another user's.
    quota, reason = on_every_rank(comm, lambda: set_chosen_quota(store) if isinstance(store, Store) else (0, ""))
    warn_once(comm, [reason] if reason else [])
    return quota


def _assemble(world: World, store: Store | ServedStore | None, job: Job) -> None:
    """Put together what a simulation has pushed as slices, where the trajectory may be the name of such a dataset."""
    if len(job.trajectories) != 1 or job.cache == "off" or os.path.isabs(job.trajectories[0]):
        return
    if world.comm.bcast(os.path.exists(os.path.expanduser(job.trajectories[0]))):
        return
    from himach.runner.assembling.here import assemble_for_run

    warn_once(world.comm, assemble_for_run(world, store, job.trajectories[0]))


def _find(world: World, store: Store | ServedStore | None, job: Job) -> tuple[bool, list[Candidate], str]:
    """Return whether this rank speaks for a store, what that holds of the trajectory, or why it cannot be told."""
    if store is None or world.leaders is None:
        return False, [], ""
    from himach.io.dataset.lookup import find, names_of
    from himach.io.store.store import StoreError

    try:
        return True, find(store, names_of(job.trajectories)), ""
    except StoreError as error:  # another user's server has ended
        return False, [], f"no frames are cached on node {world.name}: {error}"


def _own_indexes(job: Job, store: Store | ServedStore | None, held: Sequence[Candidate]) -> Mapping[str, XdrIndex]:
    """Return the indexes of the trajectory's files that this rank's store has."""
    from himach.io.dataset.attachment import attached_indexes
    from himach.io.dataset.lookup import names_of

    name = names_of(job.trajectories)[0]
    mine = [(one.name, one.generation) for one in held if one.name == name]
    return {} if store is None else attached_indexes(store, mine)


def _choose(
    job: Job,
    told: Sequence[tuple[bool, list[Candidate]]],
    known: Mapping[str, XdrIndex],
    walked: Mapping[str, XdrIndex],
    left: dict[str, XdrIndex],
) -> _Choice:
    """Open the origin, or find out which store stands in for it. On the first rank.

    Of the `known` indexes all ranks have those that they `walked` over together. `left` gets those that do
    not travel with the origin.
    """
    from himach.io.dataset.lookup import deputy, kept_otherwise, match, names_of, told_apart
    from himach.io.dataset.origin_watch import OriginNote, at_rest
    from himach.io.trajectory.origin import open_origin

    name = names_of(job.trajectories)[0]
    found = [(rank, one) for rank, (_, datasets) in enumerate(told) for one in datasets]
    if not all(os.path.exists(os.path.expanduser(path)) for path in job.trajectories):
        chosen = deputy([one for _, one in found], job.keywords)
        if chosen is not None:
            best, generations = chosen
            if reason := kept_otherwise(best, job.keywords):
                warnings.warn(reason, stacklevel=2)
            holder = next((rank, one) for rank, one in found if one is best)
            return _Choice(None, told_apart(best, [one for _, one in found]), None, best.name, generations, holder)

    def opened() -> _Choice:
        origin = open_origin(job.trajectories, job.topology, job.keywords, known)
        left.update(leave_behind(origin, walked))
        if not any(has_store for has_store, _ in told):
            return _Choice(origin, None, OriginNote.of(origin), name, [])
        stamp, generations = match(origin, job.keywords, [one for _, one in found if one.name == name])
        return _Choice(origin, stamp, OriginNote.of(origin, stamp), name, generations)

    return at_rest(job.trajectories, opened)


def _watch(world: World, choice: _Choice) -> OriginWatch | None:
    """Compare what each rank sees of the origin with what the first one found (collective)."""
    from himach.io.dataset.origin_watch import OriginWatch

    if choice.origin is None or choice.note is None:
        return None
    who = f"rank {world.comm.rank} on node {world.name}"
    watch = OriginWatch(choice.note, choice.origin, who, leads=world.leaders is not None)
    on_every_rank(world.comm, watch.meet)
    return watch


def _send_files(comm: Communicator, store: Store | ServedStore | None, holder: tuple[int, Candidate]) -> OriginFiles:
    """Return on all ranks what the holder's store has of an origin that is away."""
    from himach.io.dataset.attachment import origin_files

    rank, found = holder

    def read() -> OriginFiles | None:
        if comm.rank != rank:
            return None
        assert store is not None
        return origin_files(store, found.name, found.generation, found.stamp)

    files: OriginFiles = comm.bcast(on_every_rank(comm, read), root=rank)
    return files


def _open_dataset(
    world: World, store: Store | ServedStore | None, choice: _Choice, job: Job, quota: int
) -> Dataset | Client | None:
    """Open the dataset in this node's store; the first rank of a node first, as it attaches the origin."""
    from himach.io.dataset.attachment import attach_origin
    from himach.io.dataset.lookup import find, own_generation
    from himach.io.store.store import StoreError, StoreNotFoundError

    generation: bytes | None = None
    reason = ""
    cached: Dataset | Client | None = None
    if world.leaders is not None and store is not None and choice.stamp is not None:
        try:
            generation = own_generation(find(store, [choice.name]), choice.generations)
            cached = store.dataset(choice.name, generation, create=quota > 0)
            own = _own(cached)
            if quota > 0 and own is not None:
                own.seal()  # before other ranks open it: they need not have in memory what is in files
            if quota > 0 and choice.origin is not None and own is not None:
                attach_origin(own, choice.stamp, choice.origin, job.topology)
        except StoreNotFoundError:  # there is no room to make it
            cached = generation = None
        except StoreError as error:
            cached = generation = None
            reason = f"no frames are cached on node {world.name}: {error}"
    generation = world.node.bcast(generation)
    if cached is None and generation is not None and store is not None:
        try:
            cached = store.dataset(choice.name, generation, create=False)
        except StoreError as error:
            reason = f"no frames are cached by a rank of node {world.name}: {error}"
    warn_once(world.comm, [reason] if reason else [])
    return cached


def _own(cached: Dataset | Client | None) -> Dataset | None:
    """Return what may have parsed topologies attached: this user's own dataset; none is taken from another user."""
    from himach.io.store.store import Dataset

    return cached if isinstance(cached, Dataset) else None


def _look(
    world: World,
    job: Job,
    choice: _Choice,
    files: OriginFiles | None,
    cached: Dataset | Client | None,
    keep: bool,
) -> tuple[Selected, Origin, Topology, RawFrame, float | None]:
    """Return the selection, the origin (or what stands in for it), the topology, the first frame, and `Opened.dt`."""
    from himach.io.dataset.lookup import read_some
    from himach.io.topology.loading import load_topology

    if choice.origin is None:
        return _look_without(world, job, choice, files, cached)
    origin = choice.origin

    def looked() -> tuple[Selected, Topology, RawFrame, float | None]:
        frames = job.select(origin.n_frames)
        topology = _given_topology(job, origin) or load_topology(job.topology, origin, job.keywords, _own(cached), keep)
        first = read_some(cached, [frames[0]]) or [next(origin.read([frames[0]]))]
        return frames, topology, first[0], origin.dt(frames)

    frames, topology, first, dt = on_first_rank(world.comm, looked, share=True)
    return frames, origin, topology, first, dt


def _look_without(
    world: World, job: Job, choice: _Choice, files: OriginFiles | None, cached: Dataset | Client | None
) -> tuple[Selected, Origin, Topology, RawFrame, float | None]:
    """Do as `_look` does, with what stores hold in place of the origin."""
    from himach.io.dataset.lookup import read_some, stand_in, times_between, wanted_frames

    comm, stamp = world.comm, choice.stamp
    assert stamp is not None
    assert files is not None
    frames = on_every_rank(comm, lambda: job.select(stamp.n_frames))
    wanted = wanted_frames(stamp, files.times, frames)
    whole = True
    if choice.pushed:
        frames, wanted, whole = _look_for_pushed(world, frames, wanted, cached)
    found = comm.gather(on_every_rank(comm, partial(read_some, cached, wanted)))

    def looked() -> tuple[Origin, Topology, RawFrame, float | None]:
        some = [frame for held in found for frame in held]
        times = files.times if whole else times_between(stamp.n_frames, some)
        origin = stand_in(stamp, times, job.keywords, some, job.topology)
        topology = _attached_topology(job, origin, files.topologies, cached)
        return origin, topology, next(origin.read([frames[0]])), origin.dt(frames)

    shared, topology, first, dt = on_first_rank(comm, looked, share=True)
    return frames, shared, topology, first, dt


def _look_for_pushed(
    world: World, frames: Selected, wanted: list[int], cached: Dataset | Client | None
) -> tuple[Selected, list[int], bool]:
    """Return what of a selection of pushed frames is there, what to read of it first, and whether that is all of it.

    Frames of one simulation come to several nodes, some later than others, and a node may be gone.
    """
    from himach.zazen.anywhere import find_anywhere, mark_all

    held = None if world.leaders is None else cached
    here = on_every_rank(world.comm, lambda: None if world.leaders is None else mark_all(held, frames))
    there = find_anywhere(world, here, len(frames))
    if there.n_there == len(frames):
        return frames, wanted, True
    if not there.n_there:
        ends = on_every_rank(world.comm, lambda: None if held is None else held.ends())
        known = [number for both in world.comm.allgather(ends) if both is not None for number in both]
        told = f"; those that are: {min(known)} to {max(known)}" if known else ""
        raise UsageError(f"none of the frames selected is there{told}")
    missing = len(frames) - there.n_there
    named = ", ".join(str(frames[place]) for place in sorted(there.missing, key=lambda at: frames[at]))
    warn_once(
        world.comm,
        [
            f"{missing} of {len(frames)} frames selected are on no node that takes part, and are left out: "
            f"{named}{', ...' if missing > len(there.missing) else ''}"
        ],
    )
    return frames[there.some[0] : there.some[-1] + 1], sorted(frames[place] for place in there.some), False


def _given_topology(job: Job, origin: Origin) -> Topology | None:
    """Return the topology of the Universe that the run was given, if it was."""
    if job.given is None:
        return None

    topology = job.given.topology()
    if topology.n_atoms != origin.n_atoms:
        raise UsageError(f"the Universe has {topology.n_atoms} atoms, {origin.paths[0]} has {origin.n_atoms}")
    return topology


def _attached_topology(
    job: Job, origin: Origin, attached: dict[str, tuple[str, bytes]], cached: Dataset | Client | None
) -> Topology:
    """Load the topology that the user names, if it can be reached, else the one that was attached."""
    from himach.io.topology.loading import load_topology

    given = _given_topology(job, origin)
    if given is not None:
        return given
    path = None if job.topology is None else os.path.abspath(os.path.expanduser(job.topology))
    used = path if path is not None else next(reversed(attached), None)
    keywords = dict(job.keywords)
    if path is not None:  # the kept keywords speak of another file
        keywords.setdefault("topology_format", None)
    elif used == origin.paths[0] and "format" in origin.keywords:  # a trajectory that brings its topology
        keywords.setdefault("topology_format", origin.keywords["format"])
    if used is None or used not in attached or (path is not None and os.path.exists(path)):
        return load_topology(job.topology, origin, keywords, _own(cached), attach=False)
    suffix, content = attached[used]
    with tempfile.TemporaryDirectory(prefix="himach-") as folder:
        file = Path(folder, f"topology{suffix}")
        file.write_bytes(content)
        return load_topology(file, origin, keywords, _own(cached), attach=False)
