"""Assembling: slices become whole native frames, each on one node, in rounds of bounded memory.

In a round each node reads its slices of some frames, sends them to the nodes that put these together, and those write
the frames; while one round is sent, the next is read and the one before is written. A slice is dropped when its frame
is on disk. So this can be killed at any moment, and two may do it at once: what is written twice is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from himach.io.dataset.attachment import AUTHOR, has_stamp
from himach.io.slices.held import SUFFIX, Held, Kind, Slice, find_slices, names_with_slices
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError, StoreNotFoundError
from himach.parallel.collective import on_every_rank
from himach.parallel.communicator import Communicator, World
from himach.runner.assembling.join import Joiner, NotWholeError
from himach.runner.assembling.parcels import Parcels, unpack
from himach.runner.assembling.plan import HELD, assign
from himach.runner.assembling.sending import send_all
from himach.runner.assembling.totals import AT_ONCE, totals

__all__ = ["Assembled", "assemble", "have_slices"]

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: Bytes of frames that a node puts together in a round; four rounds may be in memory, as slices or frames.
ROUND_BYTES = 32 << 20
MOST_FRAMES = 8192
#: Frames that are not whole of which it is told why.
TOLD = 8
#: Why of a frame that is there nevertheless something is told.
OTHERS = "its slices are not those of the frame that is there"


@dataclass
class Assembled:
    """What came of assembling, the same on every rank.

    Attributes
    ----------
    frames
        Put together now.
    waiting
        Of which some atoms are in no slice yet.
    absent
        Why others are not there: frame number and reason.
    nodes
        Frames put together now by each node.
    superseded
        From which frame on slices of an earlier launch were dropped, as a later one has pushed these frames anew; None
        if none were.
    """

    frames: int = 0
    waiting: int = 0
    absent: dict[int, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    superseded: int | None = None

    def __str__(self) -> str:
        places = ", ".join(f"{count} on {node}" for node, count in self.nodes.items())
        text = f"{self.frames} frames assembled{f' ({places})' if places else ''}"
        if self.waiting:
            text += f"; of {self.waiting} some slices are missing"
        if self.superseded is not None:
            text += (
                f"; a later launch has pushed frames from {self.superseded} on anew: earlier ones' slices were dropped"
            )
        told = "".join(f"\n  frame {number}: {reason}" for number, reason in sorted(self.absent.items())[:TOLD])
        return text + (f"; not whole:{told}" if told else "")


def have_slices(world: World, store: Store | None, names: Sequence[str]) -> list[str]:
    """Return those of some names of which any node has slices, the same on every rank (collective)."""
    mine = on_every_rank(
        world.comm, lambda: names_with_slices(store, names) if world.leaders is not None and store is not None else []
    )
    return sorted({name for told in world.comm.allgather(mine) for name in told})


def assemble(world: World, store: Store | None, name: str) -> Assembled:
    """Put together all frames of a dataset of which every slice is there (collective).

    Parameters
    ----------
    world
        The ranks. The first of each node works.
    store
        The node's; None where there is none.
    name
        Of the dataset.

    Raises
    ------
    StoreError
        On every rank: a store cannot be written to, or has no room. What was put together is kept, and so are the
        slices of what was not.
    """

    def led() -> Assembled | None:
        return None if world.leaders is None else _lead(world, world.leaders, store, name)

    done = on_every_rank(world.comm, led)
    shared: Assembled = world.node.bcast(done)
    return shared


def _lead(world: World, leaders: Communicator, store: Store | None, name: str) -> Assembled:
    found = on_every_rank(leaders, lambda: {} if store is None else find_slices(store, name))
    kinds: list[Kind] = sorted({kind for told in leaders.allgather(list(found)) for kind in told})
    done = Assembled()

    def refresh() -> None:
        for held in found.values():
            held.refresh()

    on_every_rank(leaders, refresh)
    superseded = _superseded(leaders, kinds, found)
    for kind in kinds:
        beside = [held for other, held in found.items() if kind.alike(other)]
        work = _Work(world, leaders, store, name, kind, found.get(kind, Held()), beside, done)
        with ThreadPoolExecutor(1, "slices-read") as reader, ThreadPoolExecutor(1, "slices-write") as writer:
            try:
                work.agree_on_author()
                if kind in superseded:
                    work.leave_to_later(superseded[kind])
                work.go(reader, writer)
                work.forget_those_there()
            finally:
                work.close()
    counts = leaders.allgather(sum(done.nodes.values()))
    done.nodes = {node: count for node, count in zip(world.nodes, counts, strict=True) if count}
    return done


def _superseded(leaders: Communicator, kinds: Sequence[Kind], found: dict[Kind, Held]) -> dict[Kind, int]:
    """Return from which frame on a later launch has pushed anew what earlier ones have, by kind (collective)."""
    told = leaders.allgather({kind: (held.began(), held.ends()) for kind, held in found.items()})
    launches: dict[Kind, tuple[int, int]] = {}  # of those that have slices: when each began, its first frame
    for kind in kinds:
        had = [(began, ends[0]) for one in told for began, ends in [one.get(kind, (None, None))] if began and ends]
        if had:
            launches[kind] = (min(began for began, _ in had), min(first for _, first in had))
    later = {
        kind: [first for other, (start, first) in launches.items() if kind.alike(other) and start > began]
        for kind, (began, _) in launches.items()
    }
    return {kind: min(firsts) for kind, firsts in later.items() if firsts}


@dataclass
class _Round:
    """Frames that are put together at once; `node_of` says where, `incoming` has the slices for this node."""

    numbers: Numbers
    node_of: Numbers
    read: Future[tuple[list[Bytes], dict[int, str]]] | None = None
    parcels: list[Parcels] = field(default_factory=list)
    unread: dict[int, str] = field(default_factory=dict)
    written: Future[tuple[list[int], dict[int, str]]] | None = None


class _Work:
    """Assembling of frames of one kind, on one node's leader."""

    def __init__(
        self, world: World, leaders: Communicator, store: Store | None, name: str, kind: Kind, held: Held,
        beside: Sequence[Held], done: Assembled,
    ) -> None:  # fmt: skip
        self._world, self._leaders, self._store, self._name = world, leaders, store, name
        self._kind, self._held, self._done = kind, held, done
        self._beside = beside  # of all launches
        self._dataset: Dataset | None = None
        self._author: bytes | None = None
        self._joiner = Joiner(kind.n_atoms)
        self._free: list[Parcels] = []  # memory to be used again

    def go(self, reader: ThreadPoolExecutor, writer: ThreadPoolExecutor) -> None:
        """Put together what is there (collective over the leaders)."""
        before: _Round | None = None  # is being written
        now: _Round | None = None  # is being read
        for coming in self._rounds():
            coming.read = reader.submit(self._read, coming)
            before, now = self._advance(before, now, writer), coming
        before = self._advance(before, now, writer)
        self._advance(before, None, writer)

    def _advance(self, before: _Round | None, now: _Round | None, writer: ThreadPoolExecutor) -> _Round | None:
        """Send what was read of `now`, have it written, and settle what was written `before`."""
        if now is not None:
            assert now.read is not None
            outgoing, now.unread = on_every_rank(self._leaders, now.read.result)
            incoming = send_all(self._leaders, outgoing)
            now.written = writer.submit(self._write, now, incoming)
            now.read = None
        if before is not None:
            self._settle(before)
        return now

    # --- What is there ------------------------------------------------------------------------------------------------

    def _rounds(self) -> Iterator[_Round]:
        """Yield frames whose slices are all there, by their number of atoms, and who puts them together."""
        nodes, n_atoms = self._leaders.size, self._kind.n_atoms
        most = min(MOST_FRAMES, max(1, ROUND_BYTES // (12 * n_atoms))) * nodes
        for first, atoms in totals(self._leaders, self._world.sum, self._held.count, self._held.ends(), n_atoms):
            there = np.flatnonzero(atoms)
            if not len(there):
                continue
            begin, end = int(there[0]), int(there[-1]) + 1
            native = self._native(range(first + begin, first + end), everywhere=True)
            whole = there[atoms[there] >= n_atoms]
            self._leave(first + there[atoms[there] < n_atoms], first + begin, native)
            for at in range(0, len(whole), most):
                numbers = first + whole[at : at + most]
                yield _Round(numbers, assign(self._shares(numbers)))

    def _shares(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        """Return how many atoms each node has of frames, `HELD` where it has the whole frame (collective)."""
        span = range(int(numbers[0]), int(numbers[-1]) + 1)
        counts = np.zeros(len(span), np.int64)
        self._held.count(span.start, counts)
        counts[self._native(span, everywhere=False)] = HELD
        return np.stack(self._leaders.allgather(counts[numbers - span.start]))

    def _native(self, frames: range, *, everywhere: bool) -> npt.NDArray[np.bool_]:
        """Return which frames this node has natively, or any node if `everywhere` (collective)."""
        native, alien = (np.zeros(-(-len(frames) // 64), dtype=np.uint64) for _ in range(2))

        def mark() -> None:
            if (dataset := self._target(create=False)) is not None:
                dataset.refresh()
                dataset.mark(frames, native, alien)

        on_every_rank(self._leaders, mark)
        if everywhere and self._leaders.size > 1:
            mine = native.copy()
            self._leaders.Allreduce(mine, native, op=self._world.bor)
        return np.unpackbits(native.view(np.uint8), bitorder="little")[: len(frames)].astype(bool)

    def _leave(self, numbers: Numbers, first: int, native: npt.NDArray[np.bool_]) -> None:
        """Take note of frames that are not whole; where the frame is there, what is left of its slices goes."""
        left = numbers[native[numbers - first]]
        on_every_rank(self._leaders, partial(self._held.drop, left))
        waiting = numbers[~native[numbers - first]]
        self._done.waiting += len(waiting)
        some = [int(number) for number in waiting[:TOLD]]
        told = self._leaders.allgather((self._held.ranks, [self._held.having(number) for number in some]))
        ranks = {rank for known, _ in told for rank in known}
        for at, number in enumerate(some):
            missing = sorted(ranks - {rank for _, having in told for rank in having[at]})
            names = ", ".join(map(str, missing[:TOLD]))
            self._done.absent[number] = (
                f"no slice of rank{'s' * (len(missing) > 1)} {names}{', ...' * (len(missing) > TOLD)}"
                if missing
                else "some atoms are in no slice"
            )

    def leave_to_later(self, first: int) -> None:
        """Drop what a later launch has pushed anew, from a frame on (collective).

        So no frame is of two launches, and frames follow one another as the simulation went on.
        """
        dropped = on_every_rank(self._leaders, partial(self._held.drop_from, first))
        if any(self._leaders.allgather(dropped)):
            told = self._done.superseded
            self._done.superseded = first if told is None else min(first, told)

    def forget_those_there(self) -> None:
        """Say nothing of frames that somebody else has put together meanwhile (collective)."""
        some = sorted(number for number, why in self._done.absent.items() if not why.startswith(OTHERS))

        def there() -> list[int]:
            dataset = self._target(create=False)
            if dataset is None or not some:
                return []
            dataset.refresh()
            native = dataset.native
            return [number for number in some if number in native]

        for told in self._leaders.allgather(on_every_rank(self._leaders, there)):
            for number in told:
                self._done.absent.pop(number, None)

    # --- A round ------------------------------------------------------------------------------------------------------

    def _read(self, of: _Round) -> tuple[list[Bytes], dict[int, str]]:
        """Read this node's slices of the frames, as bytes for each node."""
        parcels = [self._free.pop() if self._free else Parcels() for _ in range(self._leaders.size)]
        of.parcels = parcels
        unread: dict[int, str] = {}
        for found in self._held.read(of.numbers):
            if isinstance(found, Slice):
                node = int(of.node_of[np.searchsorted(of.numbers, found.frame.number)])
                parcels[node].add(found)
            else:
                rank, number = found
                unread[number] = f"the slice of rank {rank} on node {self._world.name} cannot be read"
        return [one.content() for one in parcels], unread

    def _write(self, of: _Round, incoming: list[Bytes]) -> tuple[list[int], dict[int, str]]:
        """Put this node's frames together and write them; return those that are on disk, and why others are not."""
        slices: dict[int, list[Slice]] = {}
        for data in incoming:
            for one in unpack(data):
                slices.setdefault(one.frame.number, []).append(one)
        written: list[int] = []
        bad: dict[int, str] = {}
        dataset = self._target(create=True) if slices else None
        for number in sorted(slices):
            assert dataset is not None
            try:
                frame = self._joiner.join(slices.pop(number))
                assert frame.positions is not None
                dataset.write(
                    number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True
                )
                written.append(number)
            except NotWholeError as error:
                bad[number] = str(error)
            except StoreConflictError as error:
                bad[number] = f"{OTHERS} ({error})"
        if written and dataset is not None:
            dataset.flush(durable=True)
        return written, bad

    def _settle(self, of: _Round) -> None:
        """Drop the slices of what is on disk, on every node (collective)."""
        assert of.written is not None
        written, bad = on_every_rank(self._leaders, of.written.result)
        told = self._leaders.allgather((written, {**bad, **of.unread}))
        gone = np.sort(np.array([number for numbers, _ in told for number in numbers], dtype=np.int64))
        on_every_rank(self._leaders, partial(self._held.drop, gone))
        for _, reasons in told:
            for number, reason in reasons.items():
                if len(self._done.absent) < AT_ONCE:
                    self._done.absent.setdefault(number, reason)
        for one in of.parcels:
            one.clear()
        self._free += of.parcels
        self._done.frames += len(gone)
        self._done.nodes[self._world.name] = self._done.nodes.get(self._world.name, 0) + len(written)

    # --- The dataset of whole frames ----------------------------------------------------------------------------------

    def _target(self, *, create: bool) -> Dataset | None:
        """Return the dataset of whole frames in this node's store; None if it is not there, or there is no store."""
        if self._dataset is None and self._store is not None:
            if not create and self._kind.generation not in self._store.generations(self._name):
                return None
            with self._store.locked():  # a trajectory may be staged under the name at the same moment
                self._refuse_staged(self._store)
                dataset = self._store.dataset(self._name, self._kind.generation)
                if self._author is not None and dataset.attachment(AUTHOR) is None:
                    dataset.attach(AUTHOR, self._author)
            self._dataset = dataset
        return self._dataset

    def _refuse_staged(self, store: Store) -> None:
        for generation in store.generations(self._name):
            with suppress(StoreNotFoundError):
                if has_stamp(store.dataset(self._name, generation, create=False)):
                    raise StoreConflictError(
                        f"dataset {self._name} is of a trajectory, and a simulation has pushed slices under its name: "
                        f"'himach cache evict' the one that is not meant ({self._name}, or '{self._name}{SUFFIX}')"
                    )

    def agree_on_author(self) -> None:
        """Have all slices, and the frames that are there, be of one simulation, on whatever nodes (collective)."""

        def told() -> tuple[set[bytes], set[bytes]]:
            slices = {one.attachment(AUTHOR) for held in self._beside for one in held.datasets if one.native}
            frames: set[bytes | None] = set()
            if self._store is not None and self._kind.generation in self._store.generations(self._name):
                frames = {self._store.dataset(self._name, self._kind.generation).attachment(AUTHOR)}
            return {one for one in frames if one}, {one for one in slices if one}

        both = self._leaders.allgather(on_every_rank(self._leaders, told))
        frames, slices = (sorted(set().union(*(one[i] for one in both))) for i in range(2))
        if len({*frames, *slices}) < 2:
            self._author = next(iter([*frames, *slices]), None)
            return

        def refuse() -> None:
            had = f"frames of {_words(frames)}, and " if frames else ""
            raise StoreConflictError(
                f"dataset {self._name} has {had}slices of {_words(slices)}: 'himach cache evict' the one that is not "
                f"meant ({self._name}, or '{self._name}{SUFFIX}')"
            )

        on_every_rank(self._leaders, refuse)

    def close(self) -> None:
        """Let go of the segment that was written."""
        if self._dataset is not None:
            with suppress(StoreError):
                self._dataset.close()


def _words(authors: Sequence[bytes]) -> str:
    return ", ".join(f"'{author.decode(errors='replace')}'" for author in authors)
