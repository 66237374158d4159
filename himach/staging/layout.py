"""`lay_out()`: all ranks bring a staged dataset into the layout that is asked for, each node what it holds natively."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from pyroaring import BitMap64

from himach.errors import UsageError
from himach.io.frame_source import ReadOptions
from himach.io.store.store import Dataset, StoreBusyError, StoreError, StoreFullError
from himach.io.timemajor.form import open_form
from himach.io.timemajor.holding import frames_in_tracks
from himach.io.timemajor.making import Maker, begin_form, remove_form, unmade
from himach.locks import locked
from himach.parallel.collective import Meeting, on_every_rank
from himach.parallel.communicator import World
from himach.parallel.progress import Progress

__all__ = ["lay_out"]

NUMBERS_AT_ONCE = 1 << 16


def lay_out(world: World, dataset: Dataset | None, layout: str, quiet: bool = False) -> str:
    """Bring what each node holds of a dataset into a layout (collective).

    Parameters
    ----------
    world
        The ranks.
    dataset
        In this node's store; None where the node has nothing of it.
    layout
        ``"frame"`` drops the time-major form; ``"both"`` makes it; ``"time"``
        makes it, and then drops the frames that are in it. That these can be read again is for the caller to see to.
    quiet
        Show no progress.

    Returns
    -------
    str
        What came of it, for people; the same on every rank.

    Raises
    ------
    StoreFullError
        A quota has no room for it; what was made stays, and no frame is evicted for it.
    UsageError
        Frames would be dropped that are in the time-major form alone.
    """
    dataset = _of_one_node(world, dataset)
    leads = world.leaders is not None and dataset is not None
    with ExitStack() as held:
        _be_the_only_one(world, dataset, held, quiet)
        if layout == "frame":
            _refuse_to_lose(world, dataset)
        if layout == "frame":
            removed = on_every_rank(world.comm, lambda: leads and dataset is not None and remove_form(dataset))
            return "the time-major form was dropped" if world.comm.allreduce(bool(removed)) else ""
        made, left = _make(world, dataset, quiet)
        dropped, busy = 0, 0
        if layout == "time":
            dropped, busy = on_every_rank(world.comm, lambda: _drop_frames(dataset) if leads and dataset else (0, 0))
        else:
            on_every_rank(world.comm, lambda: _see_whether_alone(dataset) if leads and dataset else None)
    told = [f"{world.comm.allreduce(made)} chunks of the time-major form made"]
    totals = [int(world.comm.allreduce(count)) for count in (left, dropped, busy)]
    words = ("chunks not, as frames changed meanwhile", "segments of frames dropped", "segments of frames in use stay")
    told += [f"{count} {what}" for count, what in zip(totals, words, strict=True) if count]
    return ", ".join(told)


def _of_one_node(world: World, dataset: Dataset | None) -> Dataset | None:
    """Return the dataset on the first of the nodes that see its store; None on the others (collective)."""
    mine = None if dataset is None else dataset.identity
    seen = world.comm.allgather((world.node_index, mine))
    return None if any(one == mine and node < world.node_index for node, one in seen) else dataset


def _be_the_only_one(world: World, dataset: Dataset | None, held: ExitStack, quiet: bool) -> None:
    """Wait until no other job makes the form on any node: where two want several nodes, one gets all of them."""

    def got() -> bool:
        return world.leaders is None or dataset is None or held.enter_context(locked(dataset.path, wait=False))

    waited = False
    while not all(world.comm.allgather(on_every_rank(world.comm, got))):
        held.close()
        if not waited and world.comm.rank == 0 and not quiet:
            print("waiting for another job that lays this dataset out", file=sys.stderr, flush=True)
        waited = True
        time.sleep(random.uniform(0.05, 0.5))


def _refuse_to_lose(world: World, dataset: Dataset | None) -> None:
    """Refuse to drop the form where it has frames that no node has one by one (collective)."""

    def lacking() -> BitMap64:
        form = None if world.leaders is None or dataset is None else open_form(dataset)
        if form is None or dataset is None:
            return BitMap64()
        dataset.refresh()
        return frames_in_tracks(form) - dataset.native

    wanted = BitMap64.union(BitMap64(), *world.comm.allgather(on_every_rank(world.comm, lacking)))
    there = world.comm.allgather(BitMap64() if dataset is None or not wanted else wanted & dataset.native)
    lost = wanted - BitMap64.union(BitMap64(), *there)
    if lost:
        raise UsageError(
            f"{len(lost)} frames (from {lost.min()} on) are in the time-major form alone, which --layout frame would "
            "drop: stage the trajectory itself, or keep them with --layout both"
        )


def _make(world: World, dataset: Dataset | None, quiet: bool) -> tuple[int, int]:
    """Make the chunks that are not there; return how many this rank has made, and how many it could not."""

    def begun() -> list[int] | None:
        if world.leaders is None or dataset is None:
            return None
        dataset.refresh()
        n_atoms = _n_atoms(dataset)
        return [] if n_atoms is None else list(unmade(dataset, begin_form(dataset, n_atoms)))

    chunks = world.node.bcast(on_every_rank(world.comm, begun)) or []
    mine = chunks[world.node.rank :: world.node.size]
    meeting = Meeting(world.comm)
    with Progress(world.comm, int(world.comm.allreduce(len(mine))), sys.stderr, quiet=quiet) as display:

        def work() -> tuple[int, int]:
            made = _make_some(dataset, mine, meeting.watched(display)) if dataset is not None and mine else 0
            display.finish(meeting.look)
            return made, len(mine) - made

        done = meeting.together(work)
    made, left = done
    return made, left


def _make_some(dataset: Dataset, chunks: list[int], progress: Callable[[int], None]) -> int:
    form = open_form(dataset)
    if form is None:  # somebody has evicted it
        return 0
    dataset.refresh()
    maker, made = Maker(dataset, form), 0
    for done, chunk in enumerate(chunks):
        try:
            made += maker.make(chunk)
        except StoreFullError as error:
            raise StoreFullError(
                f"{error}; {done} of {len(chunks)} chunks of this rank's time-major form are there, and no frames are "
                "evicted for it: give a larger --quota, or see 'himach cache evict'"
            ) from None
        progress(done + 1)
    return made


def _n_atoms(dataset: Dataset) -> int | None:
    """Return how many atoms the frames have, as the first one says that can be read; None if there is none."""
    for number in dataset.native:
        for frame in dataset.read([number], ReadOptions(ahead=False)):
            if frame is not None:
                return len(frame.positions)
    return None


def _see_whether_alone(dataset: Dataset) -> None:
    """Forget that frames are in the time-major form alone, if none is any more."""
    form = open_form(dataset)
    dataset.refresh()
    if form is not None and form.is_alone and frames_in_tracks(form) <= dataset.native:
        form.stand_alone(False)


def _drop_frames(dataset: Dataset) -> tuple[int, int]:
    """Evict the segments all frames of which are in the time-major form; return how many, and how many are held."""
    form = open_form(dataset)
    if form is None:
        return 0, 0
    form.stand_alone()
    dataset.refresh()
    there = frames_in_tracks(form)
    keep = set()
    for held in (dataset.native, dataset.alien):
        others = np.array((held - there).to_array(), dtype=np.int64)
        for begin in range(0, len(others), NUMBERS_AT_ONCE):
            keep |= {place[0] for place in dataset.locate(others[begin : begin + NUMBERS_AT_ONCE]) if place is not None}
    dropped = busy = 0
    for segment in dataset.segments():
        if segment["id"] in keep:
            continue
        try:
            dataset.evict(segment["id"])
            dropped += 1
        except StoreBusyError:
            busy += 1
        except StoreError:
            pass
    return dropped, busy
