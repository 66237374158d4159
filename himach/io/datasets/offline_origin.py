"""Stand-in for an absent origin, from the nodes' stores: `offline_origin()`."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
from pyroaring import BitMap64

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import OriginFiles, read_origin_files
from himach.io.datasets.lookup import OriginChoice, read_frames
from himach.io.datasets.origin_stamp import OriginStamp
from himach.io.datasets.request import DatasetRequest, FramesRequest
from himach.io.server.survey import ServedStore
from himach.io.store.cached_frames import CachedFrames, chunks, select_range
from himach.io.store.store import Store
from himach.io.trajectories.keywords import check
from himach.io.trajectories.origin import Origin, OriginFacts
from himach.io.trajectories.timeline import FrameTimes, InterpolatedTimes
from himach.io.trajectories.xdr_file import AbsentFile
from himach.ranks.collective import on_first_rank, run_collectively, warn_once
from himach.ranks.communicator import Communicator, World
from himach.selection import Selected, chosen, find_steps, is_sparse

#: Missing frames that a warning names.
MAX_NAMED_FRAMES = 5


def offline_origin(
    world: World,
    request: DatasetRequest,
    store: Store | ServedStore | None,
    choice: OriginChoice,
    holder: int,
    cached: CachedFrames | None,
) -> tuple[Origin, Selected, OriginFiles]:
    """Return a stand-in for an absent origin, the frames to read, and its files (collective)."""
    comm, stamp = world.comm, choice.stamp
    select = request.select if isinstance(request, FramesRequest) else None
    files: OriginFiles = comm.bcast(run_collectively(comm, partial(_files, comm, store, choice, holder)), root=holder)
    if comm.rank:
        files = replace(files, topologies={})  # the first rank parses for all, and files may be large
    if comm.size == 1 and cached is None:
        raise TrajectoryError(f"{choice.name} is not in the cache any more, and there is no file of that name")
    times = files.times
    known = None if times is None else times.__getitem__
    frames = range(stamp.n_frames) if select is None else run_collectively(comm, lambda: select(stamp.n_frames, known))
    needed = sorted({0, frames[0], *(_sample(frames) if times is None else ())})
    between = times is None and select is None  # a reader may request the time of any frame
    if choice.is_pushed:
        by_rank = comm.gather(run_collectively(comm, partial(_cached_numbers, world, cached)))
        pushed = on_first_rank(comm, lambda: select_pushed(frames, BitMap64.union(BitMap64(), *by_rank)), share=True)
        if select is None:
            needed = sorted({*needed, *pushed.sample})
        elif pushed.warning:
            warn_once(comm, [pushed.warning])
            frames, needed, between = pushed.frames, pushed.sample, True
    by_rank = comm.gather(run_collectively(comm, partial(read_frames, cached, needed)))

    def stand_in() -> Origin:
        stored = {frame.number: frame for rank_frames in by_rank for frame in rank_frames}
        numbers = sorted(stored) if between else []
        line = InterpolatedTimes(stamp.n_frames, numbers, [stored[number].time for number in numbers])
        return _origin(request, stamp, line if numbers else times, stored)

    return on_first_rank(comm, stand_in, share=True), frames, files


def _files(
    comm: Communicator, store: Store | ServedStore | None, choice: OriginChoice, holder: int
) -> OriginFiles | None:
    """Return the origin's files in the holder's store; None on other ranks."""
    if comm.rank != holder or choice.candidate is None or store is None:
        return None
    files = read_origin_files(store, choice.candidate.name, choice.candidate.generation, choice.candidate.stamp)
    return files if comm.size == 1 else deepcopy(files)  # with the bytes of the indexes


def _sample(frames: Selected | BitMap64) -> list[int]:
    """Return the first, middle and last two frames, ascending, by which `Origin.dt` tells whether times are even."""
    n = len(frames)
    return sorted({frames[step] for step in (0, 1, (n - 1) // 2, (n + 1) // 2, n - 2, n - 1) if 0 <= step < n})


def _origin(
    request: DatasetRequest, stamp: OriginStamp, times: FrameTimes | None, stored: Mapping[int, RawFrame]
) -> Origin:
    """Return an origin with only the stored frames; raises UsageError for keywords that its readers lack."""
    topology = request.topology or next(reversed([*stamp.topologies]), None)
    check(request.keywords, topology)
    files, first = [], 0
    for path, kind, n_frames in zip(stamp.paths, stamp.kinds, stamp.part_frames, strict=True):
        part_times = times if times is None or len(stamp.paths) == 1 else times[first : first + n_frames]
        files.append(AbsentFile(path, kind, n_frames, stamp.n_atoms, part_times, stamp.own_keywords, first, stored))
        first += n_frames
    facts = OriginFacts(stamp.fingerprint, stamp.timestep, stamp.has_velocities, stamp.has_forces)
    return Origin(files, request.keywords, facts)


@dataclass(frozen=True)
class Pushed:
    """The frames of a selection that any node has."""

    frames: Selected  # from the first to the last of them, or only them if they are few
    sample: list[int]  # the first, middle and last two, ascending
    warning: str  # of those that no node has; empty if there are none


def _cached_numbers(world: World, cached: CachedFrames | None) -> BitMap64:
    """Return the frames that this node has, on its first rank."""
    return BitMap64() if world.leaders is None or cached is None else cached.native | cached.alien


def select_pushed(frames: Selected, present: BitMap64) -> Pushed:
    """Return the selected ones of the frames `present` on any node; raise UsageError if there are none."""
    there = _selected(frames, present)
    n = len(there)
    if not n:
        range_text = f"; those that are: {present.min()} to {present.max()}" if present else ""
        raise UsageError(f"none of the frames selected is there{range_text}")
    if n == len(frames):
        return Pushed(frames, _sample(there), "")
    absent = list(islice((number for number in frames if number not in there), MAX_NAMED_FRAMES))
    names = ", ".join(map(str, sorted(absent)))
    n_absent = len(frames) - n
    left_out = f"{n_absent} of {len(frames)} frames selected are on no node that takes part, and are left out"
    warning = f"{left_out}: {names}{', ...' if n_absent > len(absent) else ''}"
    if not isinstance(frames, range) or not is_sparse(len(frames), len(present)):
        low, high = sorted(find_steps(frames, np.array([there.min(), there.max()])).tolist())
        return Pushed(frames[low : high + 1], _sample(there), warning)
    if frames.step < 0:
        raise UsageError(
            f"{len(frames)} frame numbers, of which so few are there, are not taken backwards: leave out a "
            "negative step"
        )
    return Pushed(chosen(np.asarray(there.to_array(), dtype=np.int64), frames.stop), _sample(there), warning)


def _selected(frames: Selected, present: BitMap64) -> BitMap64:
    """Return the selected ones of the frames `present`, in the memory of a set."""
    if not isinstance(frames, range):
        return present & BitMap64(frames.numbers.astype(np.uint64))
    first, last = sorted((frames[0], frames[-1]))
    between = select_range(present, first, last + 1)
    if abs(frames.step) == 1:
        return between
    parts = (numbers[(numbers - first) % frames.step == 0] for numbers in chunks(between))
    return BitMap64.union(BitMap64(), *(BitMap64(part.astype(np.uint64)) for part in parts))
