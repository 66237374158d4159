"""Opening a dataset on all ranks: `open_dataset()` finds caches and origin; `open_frames()` adds what a run needs.

The first rank opens the origin for all, because N ranks would parse and index N times.
"""

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from himach.errors import HimachError, UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import OriginFiles, attach_origin, read_indexes, read_origin_files, read_stamp
from himach.io.datasets.lookup import (
    Candidate,
    OriginChoice,
    choose_generation,
    choose_origin,
    find,
    list_names,
    load_attached,
    open_cache,
    read_frames,
    reopen_origin,
)
from himach.io.datasets.offline_origin import offline_origin
from himach.io.datasets.origin_stamp import OriginStamp, OriginWatch
from himach.io.datasets.request import DatasetRequest, FramesRequest
from himach.io.datasets.source import Source
from himach.io.datasets.universe_input import MemoryFrames
from himach.io.server.survey import ServedStore
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.quota import check_quota, chosen_quota, open_chosen, set_chosen_quota
from himach.io.store.store import Dataset, Store, StoreError, StoreNotFoundError
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.urls.byte_file import ask_again, close_mirrors, exists
from himach.io.trajectories.urls.mirror import keep_in
from himach.io.trajectories.xdr_index import PART_BYTES, XdrIndex, join_parts, long_files, walk_part
from himach.io.universe.topology import copy_topology, load_topology
from himach.ranks.collective import on_first_rank, run_collectively, warn_once
from himach.ranks.communicator import Communicator, World, alone, node_name
from himach.ranks.shared_arrays import SharedObject, share_object
from himach.selection import Selected

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

T = TypeVar("T")

#: A remote file is copied whole if a run reads more than one in this many frames.
WHOLE_FILE_RATIO = 4
#: A store, if any, and its quota in bytes; 0 if it keeps nothing.
OpenStore = tuple[Store | ServedStore | None, int]


@dataclass
class OpenDataset:
    """A dataset open on this rank; unpickled in another process, it reopens its store."""

    origin: Origin  # the permanent files, or a store's knowledge of them (`origin.present` is false)
    frames: Selected  # selected frame numbers
    stamp: OriginStamp  # of the origin, the last known one if it is away
    cached: CachedFrames | None = None  # this node's cached frames, where missed frames are kept
    quota: int = 0  # bytes that the store may hold; 0: nothing is kept
    watch: OriginWatch | None = None  # checks that the origin does not change
    pushed: bool = False  # whether a simulation pushed the dataset: then frames on no node are left out
    store: Store | ServedStore | None = None  # of this node
    cache: str = "off"
    name: str = ""
    generation: bytes = b""
    files: OriginFiles | None = None  # a store's files of an absent origin
    at: float = field(default_factory=time.time)  # `time.time()` at which frames became readable

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cached": None, "watch": None, "store": None, "files": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.name:
            self.store, self.quota = open_store(alone().comm, self.cache)
            self.cached, reason = open_generation(self.store, self.name, self.generation, self.quota > 0)
            warn_once(alone().comm, [f"no frames are cached: {reason}"] if reason else [])

    def close(self) -> None:
        """Close the copies of remote files until the next read."""
        close_mirrors(self.origin.paths)

    def source(self) -> Source:
        """Return a source for one process: the store, else the origin, whose frames are then kept."""
        watch = OriginWatch(self.stamp, self.origin, "this process") if self.origin.present else None
        keep = self.quota > 0 and self.cached is not None
        return Source(self.origin, self.cached, keep, watch=watch)

    def find_topology(self) -> "Topology | None":
        """Return the dataset's own topology or the last one used with it; None if unknown."""
        attached = self.topologies()
        last, node_dataset = next(reversed([*attached]), None), own_dataset(self.cached)
        if last is not None and not exists(last):
            return load_attached(None, self.origin, {}, attached, node_dataset)
        try:
            return load_topology(last, self.origin, {}, node_dataset)
        except UsageError:
            if last is None:  # it has none of its own
                return None
            raise

    def topologies(self) -> Mapping[str, tuple[str, bytes]]:
        """Return the topologies stored with the frames."""
        if self.files is not None:
            return self.files.topologies
        stamp = None if self.cached is None else read_stamp(self.cached)
        if self.store is None or stamp is None:
            return {}
        return read_origin_files(self.store, self.name, self.generation, stamp).topologies


@dataclass
class OpenFrames(OpenDataset):
    """An open dataset with the inputs of a run."""

    topology: "Topology" = field(kw_only=True)  # with guessed attributes
    shared: SharedObject | None = None  # topology, first and dt, where there are several ranks
    first: RawFrame = field(kw_only=True)  # first selected frame
    dt: float | None = None  # time between selected frames, ps; see `Origin.dt`

    def copy_topology(self) -> "Topology":
        """Return a topology for a Universe of its own."""
        copied: Topology = copy_topology(self.topology) if self.shared is None else self.shared.copy()[0]
        return copied


def open_frames(world: World, job: FramesRequest, store: OpenStore | None = None) -> OpenFrames:
    """Open the job's input: files and caches, or frames in the memory of a Universe (collective)."""
    universe = job.universe_input
    in_memory = None if universe is None else universe.frames
    dataset = open_dataset(world, job, store=store) if in_memory is None else _open_memory(world, job, in_memory)
    origin, cached = dataset.origin, dataset.cached

    def read_first() -> "tuple[Topology, RawFrame, float | None]":
        topology = _topology(job, dataset)
        first = read_frames(cached, [dataset.frames[0]]) if origin.present else []
        first = first or [next(origin.read([dataset.frames[0]]))]
        return topology, deepcopy(first[0]), origin.dt(dataset.frames)  # the reader reuses its arrays

    (topology, first, dt), shared = share_from_first(world, read_first)
    if universe is not None and universe.n_frames != origin.n_frames:
        counts = f"the Universe has {universe.n_frames} frames, and a run sees {origin.n_frames}"
        if universe.n_frames > origin.n_frames:
            raise UsageError(
                f"{counts}: it drops frames that a restart wrote again, or files are shorter now; make the Universe "
                "anew, with continuous=True where its files overlap in time, or give the files themselves"
            )
        warn_once(world.comm, [f"{counts}: the files have grown"])
    return OpenFrames(**dataset.__dict__, topology=topology, shared=shared, first=first, dt=dt)


def _topology(job: FramesRequest, dataset: OpenDataset) -> "Topology":
    """Return the topology of the run's Universe, or load one."""
    origin, node_dataset = dataset.origin, own_dataset(dataset.cached)
    if job.universe_input is not None:
        topology = job.universe_input.topology()
        if topology.n_atoms != origin.n_atoms:
            raise UsageError(f"the Universe has {topology.n_atoms} atoms, {origin.paths[0]} has {origin.n_atoms}")
        return topology
    if origin.present:
        return load_topology(job.topology, origin, job.keywords, node_dataset, dataset.quota > 0)
    return load_attached(job.topology, origin, job.keywords, dataset.topologies(), node_dataset)


def _open_memory(world: World, job: FramesRequest, frames: MemoryFrames) -> OpenDataset:
    """Open a job whose frames are in the memory of a Universe; it has no cache (collective)."""
    origin = Origin([frames], {}, frames.facts())
    fingerprint = world.comm.bcast(origin.fingerprint)

    def compare() -> None:
        if origin.fingerprint != fingerprint:
            raise UsageError("the trajectory in memory is another one here than on the first rank; give all the same")

    run_collectively(world.comm, compare)
    selected = on_first_rank(world.comm, partial(_select, job, origin), share=True)
    return OpenDataset(origin, selected, OriginStamp.from_origin(origin, {}))


def open_dataset(
    world: World,
    request: DatasetRequest,
    *,
    name: str = "",
    by_name: bool | None = None,
    reads_files: bool = False,
    store: OpenStore | None = None,
) -> OpenDataset:
    """Open a dataset (collective over the world)."""
    comm = world.comm
    node_store, quota = store or open_store(comm, request.cache)
    note_elsewhere(request, node_store, quota)
    names = [name] if name else list_names(request.trajectories)
    choice, holder, candidates = choose_together(
        world, node_store, request, names, by_name=by_name, reads_files=reads_files
    )
    origin, files = choice.origin, None
    watch = None if origin is None else watch_origin(world, origin, choice.stamp)
    cached = _open_cached(world, node_store, choice, candidates, quota, request.topology)
    ready = time.time()
    if origin is not None:
        frames = on_first_rank(comm, partial(_select, request, origin), share=True)
    else:
        origin, frames, files = offline_origin(world, request, node_store, choice, holder, cached)
    opened = OpenDataset(
        origin, frames, choice.stamp, cached, quota, watch, choice.is_pushed, node_store, request.cache, at=ready
    )
    opened.files = files
    if cached is not None:
        opened.name, opened.generation = cached.name, cached.generation
    return opened


def _select(request: DatasetRequest, origin: Origin) -> Selected:
    return (
        request.select(origin.n_frames, origin.times) if isinstance(request, FramesRequest) else range(origin.n_frames)
    )


def note_elsewhere(request: DatasetRequest, store: Store | ServedStore | None = None, quota: int = 0) -> None:
    """Register the dataset's remote files, whether most frames are needed, and the store that keeps them."""
    keep_in(store.path if store is not None and quota else None, quota)
    n_frames = 1 << 20
    try:
        reads_most = isinstance(request, FramesRequest) and WHOLE_FILE_RATIO * len(request.select(n_frames)) > n_frames
    except HimachError:
        reads_most = False
    ask_again([*request.trajectories, *([] if request.topology is None else [request.topology])], reads_most)


def _find_together(world: World, store: Store | ServedStore | None, names: Sequence[str]) -> list[Candidate]:
    """Return the candidates in this node's store on the node's first rank (collective)."""

    def find_here() -> tuple[list[Candidate], str]:
        if store is None or world.leaders is None:
            return [], ""
        try:
            return find(store, names), ""
        except StoreError as error:  # another user's server has ended
            return [], f"no frames are cached on node {world.name}: {error}"

    candidates, reason = run_collectively(world.comm, find_here)
    warn_once(world.comm, [reason] if reason else [])
    return candidates


def choose_together(
    world: World,
    store: Store | ServedStore | None,
    request: DatasetRequest,
    names: Sequence[str],
    *,
    by_name: bool | None = None,
    reads_files: bool = False,
) -> tuple[OriginChoice, int, list[Candidate]]:
    """Choose the origin on the first rank; return also the rank of a store in its place, and this node's candidates."""
    candidates = _find_together(world, store, names)
    by_rank = world.comm.gather(candidates)

    @cache
    def stored_indexes() -> dict[str, XdrIndex]:
        return {} if store is None else read_indexes(store, [(item.name, item.generation) for item in candidates])

    walked = walk_together(world, request.trajectories, stored_indexes)

    def load_indexes() -> dict[str, XdrIndex]:
        return {**stored_indexes(), **walked}

    def open_files() -> Origin:
        return open_origin(request.trajectories, request.topology, request.keywords, load_indexes())

    def choose() -> tuple[OriginChoice, int]:
        stored = [item for group in by_rank for item in group]
        choice = choose_origin(names[0], request.trajectories, request.keywords, stored, open_files, by_name)
        if reads_files:
            choice = reopen_origin(choice, request.keywords, stored, load_indexes)
        holders = (rank for rank, group in enumerate(by_rank) for item in group if item is choice.candidate)
        return choice, next(holders, 0)

    (choice, holder), _ = share_from_first(world, choose)
    return choice, holder, candidates


def walk_together(
    world: World, paths: Sequence[os.PathLike[str]], load_indexes: Callable[[], Mapping[str, XdrIndex]]
) -> dict[str, XdrIndex]:
    """Walk over long files by parts; return their indexes on the first rank, but of those whose parts do not fit."""
    indexes: dict[str, XdrIndex] = {}
    comm = world.comm
    files = on_first_rank(comm, lambda: list(long_files(paths, load_indexes())), share=True) if comm.size > 1 else []
    for file in files:
        n_parts = min(comm.size, file.size // PART_BYTES)
        parts = comm.gather(run_collectively(comm, partial(walk_part, file, comm.rank, n_parts)))
        index = on_first_rank(comm, partial(join_parts, file, parts and parts[:n_parts]))
        if index is not None:
            indexes[file.path] = index
    return indexes


def share_from_first(world: World, make: Callable[[], T]) -> tuple[T, SharedObject | None]:
    """Return what `make` returns on the first rank, and what makes copies that map its arrays, if there are ranks."""
    if world.comm.size == 1:
        return make(), None

    def make_both() -> tuple[T, SharedObject]:
        value = make()
        return value, SharedObject(value)

    made = on_first_rank(world.comm, make_both)
    shared = share_object(world, None if world.comm.rank else made[1])
    return (cast(T, shared.copy()) if world.comm.rank else made[0]), shared


def watch_origin(world: World, origin: Origin, stamp: OriginStamp) -> OriginWatch:
    """Check that each rank sees the same origin as the first one; return the watch (collective)."""
    reader = f"rank {world.comm.rank} on node {world.name}"
    watch = OriginWatch(stamp, origin, reader, leads=world.leaders is not None)
    run_collectively(world.comm, watch.check_at_start)
    return watch


def _open_cached(
    world: World,
    store: Store | ServedStore | None,
    choice: OriginChoice,
    candidates: Sequence[Candidate],
    quota: int,
    topology: os.PathLike[str] | None,
) -> CachedFrames | None:
    """Open the dataset in this node's store, first on the node's first rank, which attaches the origin."""
    generation: bytes | None = None
    cached: CachedFrames | None = None
    reason = ""
    if world.leaders is not None and store is not None:
        generation = choose_generation([item for item in candidates if item.name == choice.name], choice.generations)
        cached, reason = open_generation(store, choice.name, generation, quota > 0)
        node_dataset = own_dataset(cached)
        try:
            if quota > 0 and node_dataset is not None:
                node_dataset.seal()  # before other ranks open it, so that they need not hold in memory what is in files
                if choice.origin is not None:
                    attach_origin(node_dataset, choice.stamp, choice.origin, topology)
        except StoreError as error:
            cached, reason = None, str(error)
        reason = f"no frames are cached on node {world.name}: {reason}" if reason else ""
    generation = world.node.bcast(None if cached is None else generation)
    if cached is None and generation is not None and store is not None:
        cached, reason = open_generation(store, choice.name, generation, False)
        reason = f"no frames are cached by a rank of node {world.name}: {reason}" if reason else ""
    warn_once(world.comm, [reason] if reason else [])
    return cached


TASK = 512  # maximum frames read ahead; the library bounds the bytes


class FramesAhead:
    """Frames of a dataset by number; open files are closed with it."""

    def __init__(self, dataset: OpenDataset) -> None:
        self._dataset = dataset
        self._frames = range(dataset.origin.n_frames)
        self._source: Source | None = None
        self._closing: weakref.finalize[[], FramesAhead] | None = None
        self.rewind()

    def rewind(self) -> None:
        """Expect the first frame next, then its successors."""
        self._reading: Iterator[RawFrame] = iter(())
        self._planned = range(0)
        self._last, self._step = -1, 1

    def frame(self, number: int) -> RawFrame:
        """Return a frame, whose arrays are valid until the next call; raises TrajectoryError."""
        if not self._planned or self._planned[0] != number:
            self._plan(number)
        try:
            raw = next(self._reading)
        except BaseException:
            self.rewind()
            raise
        self._last, self._planned = number, self._planned[1:]
        return raw

    def _plan(self, number: int) -> None:
        """Start reading ahead at this frame."""
        step = number - self._last
        if step and (step in (1, self._step)):
            stop = self._frames.stop if step > 0 else -1
            self._planned = range(number, stop, step)[:TASK]
        else:
            self._planned = range(number, number + 1)
        self._step = step
        if self._source is None:
            self._source = self._dataset.source()
            # Runs at process exit too, so that frames read are kept.
            self._closing = weakref.finalize(self, self._source.close)
        self._reading = self._source.read(np.arange(self._planned.start, self._planned.stop, self._planned.step))

    def close(self) -> None:
        """Close the source, which keeps the frames read; a later call reopens it."""
        self.rewind()
        if self._closing is not None:
            self._closing()
        self._source = self._closing = None


def open_store(comm: Communicator, choice: str) -> tuple[Store | ServedStore | None, int]:
    """Open the chosen store; return it and its quota in bytes, 0 if it keeps nothing (collective)."""
    if choice == "off":
        return None, 0
    location = f" (node {node_name()})" if comm.size > 1 else ""
    store, reason = run_collectively(comm, partial(open_cache, choice))
    warn_once(comm, [reason + location] if reason else [])
    # The store may be absent or another user's, and the disk may have no room for a segment.
    quota, reason = run_collectively(comm, lambda: set_chosen_quota(store) if isinstance(store, Store) else (0, ""))
    warn_once(comm, [reason + location] if reason else [])
    return store, quota


def open_to_write(choice: str, refusal: str, quota: str | int | None = None) -> Store:
    """Open the chosen store with its quota; raise UsageError, by default with `refusal`, if there is none."""
    store, reason = open_chosen(choice)
    if store is None:
        raise UsageError(reason or refusal)
    quota = chosen_quota(store.path, quota)
    check_quota(store.path, quota)
    store.set_quota(quota)
    return store


def open_generation(
    store: Store | ServedStore | None, name: str, generation: bytes, create: bool
) -> tuple[CachedFrames | None, str]:
    """Open a dataset of a store; return it and the reason of a failure, "" if it does not exist."""
    try:
        return None if store is None else store.dataset(name, generation, create=create), ""
    except StoreNotFoundError:
        return None, ""
    except StoreError as error:
        return None, str(error)


def own_dataset(cached: CachedFrames | None) -> Dataset | None:
    """Return this user's own dataset, the only kind whose attached parsed topologies are used; else None."""
    return cached if isinstance(cached, Dataset) else None
