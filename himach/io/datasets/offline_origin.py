"""Stand-in for an absent origin, from the nodes' stores: `offline_origin()`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import OriginFiles, read_origin_files
from himach.io.datasets.lookup import OriginChoice, read_frames
from himach.io.datasets.origin_stamp import OriginStamp
from himach.io.datasets.request import DatasetRequest, FramesRequest
from himach.io.server.survey import ServedStore
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.cached_frames import select_range as numbers_between
from himach.io.store.store import Store
from himach.io.trajectories.index.timeline import FrameTimes, InterpolatedTimes, Times
from himach.io.trajectories.join import FilePart
from himach.io.trajectories.keywords import check, find_readers, parser_class
from himach.io.trajectories.origin import Origin, OriginFacts
from himach.io.trajectories.xdr_file import AbsentFile
from himach.ranks.collective import on_first_rank, run_collectively, warn_once
from himach.ranks.communicator import Communicator, World
from himach.selection import FrameList, Selected, chosen, is_sparse, numbers_at
from himach.zazen.anywhere import Anywhere, find_anywhere, find_listed, mark_all


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
    needed = _needed_frames(files.times, frames)
    between = times is None and select is None  # a reader may request the time of any frame
    if choice.is_pushed:
        located, listed_frames = _find_pushed(world, frames, cached)
        located_frames = [frames[place] for place in located.sample]
        if select is None:
            needed = sorted({*needed, *located_frames})
        elif located.n_cached < len(frames):
            _warn_missing(world, frames, located, cached)
            frames = frames[located.sample[0] : located.sample[-1] + 1] if listed_frames is None else listed_frames
            needed, between = sorted(located_frames), True
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


def _needed_frames(times: Times | None, frames: Selected) -> list[int]:
    """Return the frames of the origin that setting up a run needs."""
    needed = {0, frames[0]}
    if times is None:
        middle = max(0, (len(frames) - 1) // 2)
        needed.update(frames[step] for step in (1, middle, middle + 1, -2, -1) if -len(frames) <= step < len(frames))
    return sorted(needed)


def _origin(
    request: DatasetRequest, stamp: OriginStamp, times: FrameTimes | None, stored: Mapping[int, RawFrame]
) -> Origin:
    """Return an origin with only the stored frames; raises UsageError for keywords that its readers lack."""
    topology = request.topology or next(reversed([*stamp.topologies]), None)
    parser = None if topology is None else parser_class(os.fspath(topology), request.keywords.get("topology_format"))
    check(request.keywords, find_readers(stamp.kinds), [] if parser is None else [parser])
    parts, first = [], 0
    for path, kind, n_frames in zip(stamp.paths, stamp.kinds, stamp.part_frames, strict=True):
        part_times = times if times is None or len(stamp.paths) == 1 else times[first : first + n_frames]
        file = AbsentFile(path, kind, n_frames, stamp.n_atoms, part_times, stamp.own_keywords, first, stored)
        parts.append(FilePart(file, n_frames))
        first += n_frames
    facts = OriginFacts(stamp.fingerprint, stamp.timestep, stamp.has_velocities, stamp.has_forces)
    return Origin(parts, request.keywords, facts)


def _find_pushed(
    world: World, frames: Selected, cached: CachedFrames | None
) -> tuple[Anywhere, FrameList | range | None]:
    """Return the pushed frames of a selection on any node; if few, also as a selection."""
    comm, node_cache = world.comm, None if world.leaders is None else cached
    facts = run_collectively(comm, lambda: {} if node_cache is None else node_cache.facts())
    n_there = int(comm.allreduce(facts.get("native", 0) + facts.get("alien", 0)))
    if not isinstance(frames, range) or not is_sparse(len(frames), n_there):
        marks = run_collectively(comm, lambda: None if world.leaders is None else mark_all(node_cache, frames))
        return find_anywhere(world, marks, len(frames)), None
    if frames.step < 0:
        raise UsageError(
            f"{len(frames)} frame numbers, of which so few are there, are not taken backwards: leave out a "
            "negative step"
        )
    located, places = find_listed(world, run_collectively(comm, lambda: _find_places(node_cache, frames)), len(frames))
    return located, None if not len(places) else chosen(numbers_at(frames, places), frames.stop)


def _find_places(node_cache: CachedFrames | None, frames: range) -> npt.NDArray[np.int64] | None:
    """Return the positions in a selection of the frames that a store holds."""
    if node_cache is None:
        return None
    numbers = np.asarray(
        numbers_between(node_cache.native | node_cache.alien, frames.start, frames.stop).to_array(), dtype=np.int64
    )
    places, remainders = np.divmod(numbers - frames.start, frames.step)
    result: npt.NDArray[np.int64] = places[remainders == 0]
    return result


def _warn_missing(world: World, frames: Selected, located: Anywhere, cached: CachedFrames | None) -> None:
    """Warn of selected frames that are left out; raise UsageError if none is available."""
    if not located.n_cached:
        node_cache = None if world.leaders is None else cached
        bounds = run_collectively(world.comm, lambda: None if node_cache is None else node_cache.bounds())
        numbers = [number for pair in world.comm.allgather(bounds) if pair is not None for number in pair]
        range_text = f"; those that are: {min(numbers)} to {max(numbers)}" if numbers else ""
        raise UsageError(f"none of the frames selected is there{range_text}")
    missing = len(frames) - located.n_cached
    names = ", ".join(str(frames[place]) for place in sorted(located.missing, key=lambda position: frames[position]))
    left_out = f"{missing} of {len(frames)} frames selected are on no node that takes part, and are left out"
    warn_once(world.comm, [f"{left_out}: {names}{', ...' if missing > len(located.missing) else ''}"])
