"""An origin that is away, as the nodes' stores tell of it: `offline_origin()`, from what `share_files()` brings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError, UsageError
from himach.io.dataset.attachment import OriginFiles, origin_files
from himach.io.dataset.lookup import Candidate, origin_from_stamp, read_some, times_between, wanted_frames
from himach.io.dataset.origin_choice import OriginChoice
from himach.io.store.cached_frames import between
from himach.io.trajectory.origin import Origin
from himach.opening.options import DatasetRequest
from himach.parallel.collective import on_every_rank, on_first_rank, warn_once
from himach.parallel.communicator import Communicator, World
from himach.selection import FrameList, Selected, chosen, is_sparse, numbers_at
from himach.zazen.anywhere import Anywhere, find_anywhere, find_listed, mark_all

if TYPE_CHECKING:
    from himach.io.server.served_store import ServedStore
    from himach.io.store.cached_frames import CachedFrames
    from himach.io.store.store import Store

__all__ = ["offline_origin", "share_files"]


def share_files(
    comm: Communicator, store: Store | ServedStore | None, found: Candidate | None, holder: int
) -> OriginFiles:
    """Return on all ranks what the holder's store has of an origin that is away (collective)."""

    def read() -> OriginFiles | None:
        if comm.rank != holder or found is None or store is None:
            return None
        return origin_files(store, found.name, found.generation, found.stamp)

    files: OriginFiles = comm.bcast(on_every_rank(comm, read), root=holder)
    return files


def offline_origin(
    world: World,
    asked: DatasetRequest,
    select: Callable[[int], Selected] | None,
    choice: OriginChoice,
    files: OriginFiles,
    cached: CachedFrames | None,
) -> tuple[Origin, Selected]:
    """Return what stands in for an origin that is away, and the frames that are wanted of it (collective).

    Parameters
    ----------
    world
        The ranks.
    asked
        What is opened.
    select
        Returns the frames that are wanted, given how many there are; None: all that are there may be.
    choice
        What it is.
    files
        What a store has of it, as of `share_files`.
    cached
        What this node's store holds.

    Raises
    ------
    TrajectoryError
        This process is alone, and its store does not have it any more.
    UsageError
        As `select` does; or no frame that is wanted is there.
    """
    comm, stamp = world.comm, choice.stamp
    assert stamp is not None
    if comm.size == 1 and cached is None:
        raise TrajectoryError(f"{choice.name} is not in the cache any more, and there is no file of that name")
    frames = range(stamp.n_frames) if select is None else on_every_rank(comm, lambda: select(stamp.n_frames))
    wanted = wanted_frames(stamp, files.times, frames)
    is_told = files.times is not None or select is not None  # else a reader asks for times of any frame
    if choice.is_pushed:
        there, those = _look_for_pushed(world, frames, cached)
        some = [frames[place] for place in there.some]
        if select is None:
            wanted = sorted({*wanted, *some})
        elif there.n_there < len(frames):
            _tell_missing(world, frames, there, cached)
            frames = frames[there.some[0] : there.some[-1] + 1] if those is None else those
            wanted, is_told = sorted(some), False
    found = comm.gather(on_every_rank(comm, partial(read_some, cached, wanted)))

    def stood_in() -> Origin:
        some = [frame for held in found for frame in held]
        times = files.times if is_told or not some else times_between(stamp.n_frames, some)
        return origin_from_stamp(stamp, times, asked.keywords, some, asked.topology)

    return on_first_rank(comm, stood_in, share=True), frames


def _look_for_pushed(
    world: World, frames: Selected, cached: CachedFrames | None
) -> tuple[Anywhere, FrameList | range | None]:
    """Return what of a selection of pushed frames is there; where these are few, they are a selection of their own.

    Frames of one simulation come to several nodes, some later than others, and a node may be gone.
    """
    comm, held = world.comm, None if world.leaders is None else cached
    facts = on_every_rank(comm, lambda: {} if held is None else held.facts())
    n_there = int(comm.allreduce(facts.get("native", 0) + facts.get("alien", 0)))
    if not isinstance(frames, range) or not is_sparse(len(frames), n_there):
        here = on_every_rank(comm, lambda: None if world.leaders is None else mark_all(held, frames))
        return find_anywhere(world, here, len(frames)), None
    if frames.step < 0:
        raise UsageError(
            f"{len(frames)} frame numbers, of which so few are there, are not taken backwards: leave out a "
            "negative step"
        )
    there, places = find_listed(world, on_every_rank(comm, lambda: _places(held, frames)), len(frames))
    return there, None if not len(places) else chosen(numbers_at(frames, places), frames.stop)


def _places(held: CachedFrames | None, frames: range) -> npt.NDArray[np.int64] | None:
    """Return where in a selection the frames are that a store holds."""
    if held is None:
        return None
    numbers = np.asarray(between(held.native | held.alien, frames.start, frames.stop).to_array(), dtype=np.int64)
    places, rest = np.divmod(numbers - frames.start, frames.step)
    there: npt.NDArray[np.int64] = places[rest == 0]
    return there


def _tell_missing(world: World, frames: Selected, there: Anywhere, cached: CachedFrames | None) -> None:
    """Warn of frames of a selection that are left out; refuse one of which nothing is there."""
    if not there.n_there:
        held = None if world.leaders is None else cached
        ends = on_every_rank(world.comm, lambda: None if held is None else held.ends())
        known = [number for both in world.comm.allgather(ends) if both is not None for number in both]
        told = f"; those that are: {min(known)} to {max(known)}" if known else ""
        raise UsageError(f"none of the frames selected is there{told}")
    missing = len(frames) - there.n_there
    named = ", ".join(str(frames[place]) for place in sorted(there.missing, key=lambda at: frames[at]))
    left_out = f"{missing} of {len(frames)} frames selected are on no node that takes part, and are left out"
    warn_once(world.comm, [f"{left_out}: {named}{', ...' if missing > len(there.missing) else ''}"])
