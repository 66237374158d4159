"""`lay_out_by_use()`: the time-major form made bit by bit, where runs ask for few atoms again and again."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from himach.io.server.client import Client
from himach.io.store.quota import survey
from himach.io.store.store import Dataset
from himach.io.timemajor.form import open_form
from himach.io.timemajor.layout import CHUNK_FRAMES
from himach.io.timemajor.making import Maker, begin_form, making, unmade
from himach.io.timemajor.uses import Uses, frame_bytes, is_worth_it
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import World

__all__ = ["Asked", "lay_out_by_use"]

#: What may go wrong without a word, and end it: the outcome of the run is there.
FAILURES = (Exception, KeyboardInterrupt)
#: Bytes of chunks to one of frames, at most, where they are packed.
LARGER = 2
#: Times as fast as it was, at most, that a process may turn out to make chunks.
QUICKER = 4


@dataclass(frozen=True)
class Asked:
    """What a run has read.

    Attributes
    ----------
    atoms
        Of each frame, ascending, int64 (n,); None: all.
    n_atoms
        Of the dataset.
    n_read
        Frames that this rank has read one by one from the cache.
    seconds
        How long that and map() took.
    quota
        Bytes that this node's store may hold; 0: nothing is kept.
    """

    atoms: npt.NDArray[np.int64] | None
    n_atoms: int
    n_read: int
    seconds: float
    quota: int


def lay_out_by_use(world: World, cached: Dataset | Client | None, asked: Asked, quiet: bool = False) -> int:
    """Count a run, and make as many chunks of the time-major form as runs like it have earned (collective).

    Each node does so with what it holds natively and may write itself. Whatever goes wrong leaves frames as they are,
    and later runs to read them one by one, as this one did. Returns how many chunks were made on all nodes.
    """
    dataset = cached if isinstance(cached, Dataset) and asked.quota else None
    n_read = int(world.node.allreduce(asked.n_read))
    with ExitStack() as held:

        def planned() -> tuple[list[int], float]:
            if world.leaders is not None and dataset is not None:
                with suppress(*FAILURES):
                    return _plan(dataset, asked, n_read, world.node.size, held)
            return [], 0.0

        chunks, limit = world.node.bcast(on_every_rank(world.comm, planned))
        if not world.comm.allreduce(len(chunks)):
            return 0
        mine = chunks[world.node.rank :: world.node.size]
        begun = time.monotonic()
        made = on_every_rank(world.comm, lambda: 0 if dataset is None else _make(dataset, mine, begun + limit))
        seconds, most = time.monotonic() - begun, max(world.node.allgather(made))

        def spent() -> None:
            if world.leaders is not None and dataset is not None and chunks:
                with suppress(*FAILURES):
                    uses = Uses.of(dataset)
                    uses.spend(seconds, most * _chunk_bytes(dataset))
                    uses.keep(dataset)

        on_every_rank(world.comm, spent)
    total = int(world.comm.allreduce(made))
    if total and world.comm.rank == 0 and not quiet:
        print(
            f"himach: runs ask for few atoms of all frames again and again, so {total} chunks of the time-major form "
            f"were made in {seconds:.1f} s ('himach stage --layout both' makes all, '--layout frame' ends it)",
            file=sys.stderr,
        )
    return total


def _plan(dataset: Dataset, asked: Asked, n_read: int, processes: int, held: ExitStack) -> tuple[list[int], float]:
    """Count the run; return chunks to make, and how long. Nobody else on the node makes any until `held` ends."""
    dataset.refresh()
    if asked.atoms is None or not is_worth_it(dataset, asked.n_atoms, asked.atoms, n_read):
        return [], 0.0
    if not held.enter_context(making(dataset, wait=False)):
        return [], 0.0
    uses = Uses.of(dataset)
    uses.add(asked.seconds)
    uses.keep(dataset)
    one = _chunk_bytes(dataset)
    limit = uses.seconds(one, asked.seconds)
    # No other's chunks give way to these, as they would to such as are asked for.
    room = (asked.quota - survey(dataset.store.path).used) // (LARGER * one) if limit else 0
    if room <= 0:
        return [], 0.0
    enough = processes * (1 + int(QUICKER * limit * uses.speed / one))
    return list(islice(unmade(dataset, begin_form(dataset, asked.n_atoms)), min(room, enough))), limit


def _chunk_bytes(dataset: Dataset) -> int:
    """Return about how many bytes of frames go into a chunk."""
    return max(1, min(len(dataset.native), CHUNK_FRAMES) * frame_bytes(dataset))


def _make(dataset: Dataset, chunks: list[int], end: float) -> int:
    """Make chunks until a time; until one cannot be, as the quota has no room, or somebody has evicted the form."""
    made = 0
    with suppress(*FAILURES):
        form = open_form(dataset)
        dataset.refresh()
        if form is not None:
            maker, begun = Maker(dataset, form), time.monotonic()
            for done, chunk in enumerate(chunks):
                now = time.monotonic()
                if done and now + (now - begun) / done > end:
                    break
                made += maker.make(chunk)
    return made
