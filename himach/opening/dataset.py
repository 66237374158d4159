"""How ranks open a dataset together: `open_dataset()` finds caches and origin; `open_frames()` is what a run works on.

The first rank opens the origin for all, because N ranks would parse and index N times. Where the origin is away, a
node whose store has a stamp of it stands in. One process alone opens a dataset in the same way, in a world of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from himach.errors import HimachError, UsageError
from himach.opening.node_store import open_generation, open_store, own_dataset
from himach.opening.options import DatasetRequest, FramesRequest
from himach.opening.parallel_scan import NodeBytes, walk_together
from himach.opening.shared_index import free, leave_behind, settle
from himach.parallel.collective import from_first_rank, on_every_rank, on_first_rank, warn_once
from himach.parallel.communicator import World, alone
from himach.selection import Selected

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

    from himach.frame import RawFrame
    from himach.io.dataset.attachment import OriginFiles
    from himach.io.dataset.lookup import Candidate
    from himach.io.dataset.origin_choice import OriginChoice
    from himach.io.dataset.origin_stamp import OriginStamp
    from himach.io.dataset.origin_watch import OriginNote, OriginWatch
    from himach.io.dataset.source import Source
    from himach.io.server.served_store import ServedStore
    from himach.io.store.cached_frames import CachedFrames
    from himach.io.store.store import Dataset, Store
    from himach.io.trajectory.index.xdr_index import XdrIndex
    from himach.io.trajectory.origin import Origin
    from himach.opening.universe_input import UniverseInput

__all__ = [
    "Assemble",
    "OpenDataset",
    "OpenRequest",
    "Opened",
    "open_dataset",
    "open_frames",
    "open_store",
    "watch_origin",
]

#: One of so many frames is wanted, at least, where a file elsewhere is brought as a whole.
MOST = 4
#: Puts together what was pushed as slices of a dataset, and returns what is to be said (collective).
Assemble = Callable[["World", "Store | ServedStore | None", DatasetRequest], Sequence[str]]


@dataclass(frozen=True)
class OpenRequest:
    """What is to be opened, and how.

    Attributes
    ----------
    dataset
        Trajectories, topology, keywords and cache.
    select
        Returns the frames that are wanted, given how many there are; None: all that are there may be.
    assemble
        Makes frames of slices before others are looked for; None: nothing does.
    name
        Of the dataset in stores, where its path does not tell it.
    by_name
        True: it goes by its name, whatever files are called so; False: there have to be files; None: files, if all are
        there.
    reads_files
        Whether files of a dataset that goes by its name are read, where they are there, and as they were.
    open_files
        Opens the files, given indexes that are known, in place of `open_origin`.
    open_cached
        Opens, on each rank, the dataset of the store in which frames are to stay, or raises; None: where there is no
        such dataset, frames come from the origin.
    store
        Open already; None: that which the dataset's cache names.
    quota
        Bytes that a store which is open already may hold; 0: nothing is kept there.
    """

    dataset: DatasetRequest
    select: Callable[[int], Selected] | None = None
    assemble: Assemble | None = None
    name: str = ""
    by_name: bool | None = None
    reads_files: bool = False
    open_files: Callable[[Mapping[str, XdrIndex]], Origin] | None = None
    open_cached: Callable[[OriginChoice, Sequence[Candidate]], Dataset] | None = None
    store: Store | ServedStore | None = None
    quota: int = 0

    @property
    def names(self) -> list[str]:
        """Names that the dataset may have in stores; the first is that of its files."""
        from himach.io.dataset.lookup import names_of

        return [self.name] if self.name else names_of(self.dataset.trajectories)

    def selected(self, n_frames: int) -> Selected:
        """Return the frames that are wanted of so many."""
        return range(n_frames) if self.select is None else self.select(n_frames)

    def opened(self, known: Mapping[str, XdrIndex]) -> Origin:
        """Open the files."""
        if self.open_files is not None:
            return self.open_files(known)
        from himach.io.trajectory.origin import open_origin

        return open_origin(self.dataset.trajectories, self.dataset.topology, self.dataset.keywords, known)


@dataclass
class OpenDataset:
    """A dataset, open on this rank; in another process, where it comes as a pickle, its store is opened anew.

    Attributes
    ----------
    origin
        Where the dataset is stored for good, or what a store knows of it (`origin.present` is false).
    frames
        The selected frame numbers.
    cached
        What this node's store holds, and where missed frames are kept; None without a cache.
    quota
        Bytes that the store may hold; 0: nothing is kept.
    watch
        Looks to it that the origin stays what it was; None if it is away, or in another process.
    pushed
        Whether a simulation pushed the dataset: then frames that are nowhere are left out.
    store
        Of this node, if there is one.
    cache, name, generation
        The choice of the store, and the dataset in it.
    note
        Of the origin as it was found; None where it is away.
    files
        What a store has of an origin that is away.
    held
        What the node has in memory for all its ranks.
    noted
        Stamp of the origin, on the first rank; None where no cache asked for one.
    at
        `time.time()` at which frames could be read; topology and first frame came after that.
    """

    origin: Origin
    frames: Selected
    cached: CachedFrames | None = None
    quota: int = 0
    watch: OriginWatch | None = None
    pushed: bool = False
    store: Store | ServedStore | None = None
    cache: str = "off"
    name: str = ""
    generation: bytes = b""
    note: OriginNote | None = None
    files: OriginFiles | None = None
    held: Sequence[NodeBytes] = ()
    noted: OriginStamp | None = None
    at: float = field(default_factory=time.time)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cached": None, "watch": None, "store": None, "files": None, "held": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.name:
            self.store, self.quota = open_store(alone().comm, self.cache)
            self.cached, reason = open_generation(self.store, self.name, self.generation, self.quota > 0)
            warn_once(alone().comm, [f"no frames are cached: {reason}"] if reason else [])

    def close(self) -> None:
        """Free what the node holds of the origin, from which no frame can be read any more (collective)."""
        free(self.origin, self.held)

    def stamp(self, keywords: Mapping[str, Any]) -> OriginStamp:
        """Return the stamp of the origin as it is (as it was last, where it is away). On the first rank."""
        from himach.io.dataset.origin_stamp import OriginStamp

        if self.noted is None:
            self.noted = OriginStamp.of(self.origin, keywords)
        return self.noted

    def source(self) -> Source:
        """Return where one process reads frames: the store, else the origin; what is read there is kept."""
        from himach.io.dataset.lookup import server_of
        from himach.io.dataset.origin_watch import OriginWatch
        from himach.io.dataset.source import Source

        watch = None if self.note is None else OriginWatch(self.note, self.origin, "this process", leads=True)
        keep = self.quota > 0 and self.cached is not None and self.note is not None
        return Source(self.origin, self.cached, keep, server_of(self.cached), watch=watch)

    def find_topology(self, keywords: Mapping[str, Any]) -> Topology | None:
        """Return the topology that the dataset brings, or that was used with it last; None if it is not known."""
        from himach.io.dataset.origin_choice import load_attached
        from himach.io.remote.byte_file import is_there
        from himach.io.universe.topology import load_topology

        attached = self.topologies()
        used, own = next(reversed([*attached]), None), own_dataset(self.cached)
        if used is not None and not is_there(used):
            return load_attached(None, self.origin, keywords, attached, own)
        try:
            return load_topology(used, self.origin, keywords, own)
        except UsageError:
            if used is None:  # it brings none
                return None
            raise

    def topologies(self) -> Mapping[str, tuple[str, bytes]]:
        """Return the topologies that lie beside the frames."""
        from himach.io.dataset.attachment import attached_stamp, origin_files

        if self.files is not None:
            return self.files.topologies
        stamp = None if self.cached is None else attached_stamp(self.cached)
        if self.store is None or stamp is None:
            return {}
        return origin_files(self.store, self.name, self.generation, stamp).topologies


@dataclass
class Opened(OpenDataset):
    """What a run works on.

    Attributes
    ----------
    topology
        With guessed attributes.
    first
        The first of the selected frames.
    dt
        Time between selected frames, ps; see `Origin.dt`.
    """

    topology: Topology = field(kw_only=True)
    first: RawFrame = field(kw_only=True)
    dt: float | None = None


def open_frames(
    world: World,
    job: FramesRequest,
    assemble: Assemble | None = None,
    store: tuple[Store | ServedStore | None, int] = (None, 0),
) -> Opened:
    """Open what the job works on: files and caches, or frames in the memory of a Universe (collective).

    `store` is the cache, with the bytes that it may hold, where it is open already.

    Raises
    ------
    UsageError, TrajectoryError
        On every rank, as `open_dataset` and `load_topology` do.
    """
    given = job.given
    if given is not None and given.frames is not None:
        return _open_memory(world, job, given)
    dataset = open_dataset(world, OpenRequest(job, job.select, assemble, store=store[0], quota=store[1]))
    origin, cached = dataset.origin, dataset.cached

    def looked() -> tuple[Topology, RawFrame, float | None]:
        from himach.io.dataset.lookup import read_some

        topology = _topology(job, dataset)
        first = read_some(cached, [dataset.frames[0]]) if origin.present else []
        first = first or [next(origin.read([dataset.frames[0]]))]
        return topology, deepcopy(first[0]), origin.dt(dataset.frames)  # its arrays are the reader's

    topology, first, dt = from_first_rank(world, looked)
    if given is not None and given.n_frames != origin.n_frames:
        counts = f"the Universe has {given.n_frames} frames, and a run sees {origin.n_frames}"
        if given.n_frames > origin.n_frames:
            raise UsageError(
                f"{counts}: it drops frames that a restart wrote again, or files are shorter now; make the Universe "
                "anew, with continuous=True where its files overlap in time, or give the files themselves"
            )
        warn_once(world.comm, [f"{counts}: the files have grown"])
    return Opened(**dataset.__dict__, topology=topology, first=first, dt=dt)


def _topology(job: FramesRequest, dataset: OpenDataset) -> Topology:
    """Return the topology of the Universe that the run was given, or load one."""
    origin, own = dataset.origin, own_dataset(dataset.cached)
    if job.given is not None:
        topology = job.given.topology()
        if topology.n_atoms != origin.n_atoms:
            raise UsageError(f"the Universe has {topology.n_atoms} atoms, {origin.paths[0]} has {origin.n_atoms}")
        return topology
    if origin.present:
        from himach.io.universe.topology import load_topology

        return load_topology(job.topology, origin, job.keywords, own, dataset.quota > 0)
    from himach.io.dataset.origin_choice import load_attached

    return load_attached(job.topology, origin, job.keywords, dataset.topologies(), own)


def _open_memory(world: World, job: FramesRequest, given: UniverseInput) -> Opened:
    """Open a job whose frames lie in the memory of a Universe; it has no cache (collective)."""
    from himach.io.trajectory.join import FilePart
    from himach.io.trajectory.origin import Origin
    from himach.opening.memory_frames import MemoryFrames

    frames = given.frames
    assert isinstance(frames, MemoryFrames)
    facts = frames.facts()
    origin = Origin([FilePart(frames, frames.n_frames)], {}, facts)

    def looked() -> tuple[Selected, Topology, RawFrame, float | None]:
        selected = job.select(origin.n_frames)
        return selected, given.topology(), deepcopy(next(origin.read([selected[0]]))), origin.dt(selected)

    def compared() -> None:
        if facts.fingerprint != first_facts.fingerprint:
            raise UsageError("the trajectory in memory is another one here than on the first rank; give all the same")

    selected, topology, first, dt = from_first_rank(world, looked)
    first_facts = world.comm.bcast(facts)
    on_every_rank(world.comm, compared)
    return Opened(origin, selected, topology=topology, first=first, dt=dt)


def open_dataset(world: World, request: OpenRequest) -> OpenDataset:
    """Open a dataset (collective over the world).

    Raises
    ------
    UsageError, TrajectoryError
        On every rank, as `open_origin`, `open_cache`, `deputy` and `select` do.
    """
    comm, asked = world.comm, request.dataset
    _look_elsewhere(request)
    store, quota = request.store, request.quota
    if store is None:
        store, quota = open_store(comm, asked.cache)
    if request.assemble is not None:
        warn_once(comm, request.assemble(world, store, asked))
    speaks, held, reason = on_every_rank(comm, partial(_find, world, store, request))
    warn_once(comm, [reason] if reason else [])
    found = comm.gather((speaks, held))
    own = cache(partial(_own_indexes, store, held))
    left: dict[str, XdrIndex] = {}
    walked, memory = walk_together(world, asked.trajectories, own)
    choose = partial(_choose, request, found, own, walked, left)
    choice, holder = from_first_rank(world, choose)
    origin, files = choice.origin, None
    if origin is not None:
        memory = [*memory, *settle(world, origin, walked, own, left)]
    else:
        from himach.opening.offline_origin import offline_origin, share_files

        files = share_files(comm, store, choice.found, holder)
    watch = None if origin is None or choice.note is None else watch_origin(world, origin, choice.note)
    if request.open_cached is not None:
        cached: CachedFrames | None = request.open_cached(choice, held)
    else:
        cached = _open_cached(world, store, choice, held, quota, asked.topology)
    at = time.time()
    if origin is not None:
        frames = on_first_rank(comm, partial(request.selected, origin.n_frames), share=True)
    else:
        assert files is not None
        origin, frames = offline_origin(world, asked, request.select, choice, files, cached)
    opened = OpenDataset(origin, frames, cached, quota, watch, choice.is_pushed, store, asked.cache, at=at)
    opened.note, opened.files, opened.held, opened.noted = choice.note, files, memory, choice.stamp
    if cached is not None:
        opened.name, opened.generation = cached.name, cached.generation
    return opened


def _look_elsewhere(request: OpenRequest) -> None:
    """Note what of the dataset is elsewhere, and whether most of it is wanted."""
    from himach.io.remote.byte_file import ask_again

    asked, many = request.dataset, 1 << 20
    try:
        most = request.select is not None and MOST * len(request.select(many)) > many
    except HimachError:
        most = False
    ask_again([*asked.trajectories, *([] if asked.topology is None else [asked.topology])], most)


def _find(
    world: World, store: Store | ServedStore | None, request: OpenRequest
) -> tuple[bool, list[Candidate], str]:  # fmt: skip
    """Return whether this rank speaks for a store, what that holds of the trajectory, or why it cannot be told."""
    if store is None or world.leaders is None:
        return False, [], ""
    from himach.io.dataset.lookup import find
    from himach.io.store.store import StoreError

    try:
        return True, find(store, request.names), ""
    except StoreError as error:  # another user's server has ended
        return False, [], f"no frames are cached on node {world.name}: {error}"


def _own_indexes(store: Store | ServedStore | None, held: Sequence[Candidate]) -> Mapping[str, XdrIndex]:
    """Return the indexes of the trajectory's files that this rank's store has."""
    from himach.io.dataset.attachment import attached_indexes

    return {} if store is None else attached_indexes(store, [(one.name, one.generation) for one in held])


def _choose(
    request: OpenRequest,
    told: Sequence[tuple[bool, list[Candidate]]],
    own: Callable[[], Mapping[str, XdrIndex]],
    walked: Mapping[str, XdrIndex],
    left: dict[str, XdrIndex],
) -> tuple[OriginChoice, int]:
    """Open the origin, or find out what stands in for it; return also the rank whose store does. On the first rank.

    Of the known indexes all ranks have those that they `walked` over together, each its `own` too. `left` gets those
    that do not travel with the origin.
    """
    from himach.io.dataset.origin_choice import choose_origin, reopened

    asked, found = request.dataset, [one for _, datasets in told for one in datasets]

    def known() -> dict[str, XdrIndex]:
        return {**own(), **walked}

    choice = choose_origin(
        request.names[0],
        asked.trajectories,
        asked.keywords,
        found,
        lambda: request.opened(known()),
        by_name=request.by_name,
        stamped=any(has_store for has_store, _ in told),
    )
    if request.reads_files:
        choice = reopened(choice, asked.keywords, found, known)
    if choice.origin is not None and len(told) > 1:  # else it goes nowhere
        left.update(leave_behind(choice.origin, walked))
    holders = (rank for rank, (_, datasets) in enumerate(told) for one in datasets if one is choice.found)
    return choice, next(holders, 0)


def watch_origin(world: World, origin: Origin, note: OriginNote) -> OriginWatch:
    """Compare what each rank sees of the origin with what the first one found (collective)."""
    from himach.io.dataset.origin_watch import OriginWatch

    who = f"rank {world.comm.rank} on node {world.name}"
    watch = OriginWatch(note, origin, who, leads=world.leaders is not None)
    on_every_rank(world.comm, watch.meet)
    return watch


def _open_cached(
    world: World,
    store: Store | ServedStore | None,
    choice: OriginChoice,
    held: Sequence[Candidate],
    quota: int,
    topology: os.PathLike[str] | None,
) -> CachedFrames | None:
    """Open the dataset in this node's store; the first rank of a node first, as it attaches the origin."""
    from himach.io.dataset.attachment import attach_origin
    from himach.io.dataset.lookup import own_generation
    from himach.io.store.store import StoreError

    generation: bytes | None = None
    cached: CachedFrames | None = None
    reason = ""
    if world.leaders is not None and store is not None and choice.stamp is not None:
        generation = own_generation([one for one in held if one.name == choice.name], choice.generations)
        cached, reason = open_generation(store, choice.name, generation, quota > 0)
        own = own_dataset(cached)
        try:
            if quota > 0 and own is not None:
                own.seal()  # before other ranks open it: they need not have in memory what is in files
                if choice.origin is not None:
                    attach_origin(own, choice.stamp, choice.origin, topology)
        except StoreError as error:
            cached, reason = None, str(error)
        reason = f"no frames are cached on node {world.name}: {reason}" if reason else ""
    generation = world.node.bcast(None if cached is None else generation)
    if cached is None and generation is not None and store is not None:
        cached, reason = open_generation(store, choice.name, generation, False)
        reason = f"no frames are cached by a rank of node {world.name}: {reason}" if reason else ""
    warn_once(world.comm, [reason] if reason else [])
    return cached
