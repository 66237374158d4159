"""Frames to assemble: which are complete on all nodes (`Finder`), where they go (`AssemblyTarget`); `Assembled`."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.datasets.attachment import AUTHOR, has_stamp
from himach.io.frame_source import Numbers
from himach.io.push.held_slices import SUFFIX, HeldSlices, SliceKind
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError, StoreNotFoundError
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator

#: Reason for slices that do not match the frame already stored.
FOREIGN = "its slices are not those of the frame that is there"


class AssemblyTarget:
    """Whole frames of one kind in this node's store."""

    def __init__(self, store: Store | None, name: str, kind: SliceKind) -> None:
        self._store, self._name, self._kind = store, name, kind
        self._dataset: Dataset | None = None
        self._author: bytes | None = None
        self._streams = False

    @property
    def is_there(self) -> bool:
        """Whether the dataset exists."""
        return self._store is not None and self._kind.generation in self._store.generations(self._name)

    def open(self) -> Dataset:
        """Open the dataset, creating it if it does not exist."""
        if self._dataset is None:
            assert self._store is not None
            with self._store.locked():  # a trajectory may be staged under the name at the same moment
                self._refuse_staged(self._store)
                dataset = self._store.dataset(self._name, self._kind.generation)
                if self._author is not None and dataset.attachment(AUTHOR) is None:
                    dataset.attach(AUTHOR, self._author)
            self._dataset = dataset
        return self._dataset

    def open_to_write(self) -> Dataset:
        """Open the dataset for streaming: written frames go to disk while more are assembled."""
        dataset = self.open()
        if not self._streams:
            dataset.writer(native=True).stream()
            self._streams = True
        return dataset

    def holds(self, frames: Numbers) -> npt.NDArray[np.bool_]:
        """Return which frames the dataset holds natively now, bool (n,)."""
        if not len(frames) or (self._dataset is None and not self.is_there):
            return np.zeros(len(frames), np.bool_)
        dataset = self.open()
        dataset.refresh()
        return dataset.holds(frames, native=True)

    @property
    def advice(self) -> str:
        """Advice for a store that is full."""
        return (
            f"a larger quota for a while lets the frames in, as their slices then go: 'himach stage {self._name} "
            "--assemble --quota SIZE'; or make room ('himach cache list', 'himach cache evict')"
        )

    def _refuse_staged(self, store: Store) -> None:
        for generation in store.generations(self._name):
            with suppress(StoreNotFoundError):
                if has_stamp(store.dataset(self._name, generation, create=False)):
                    raise StoreConflictError(
                        f"dataset {self._name} is of a trajectory, and a simulation has pushed slices under its name: "
                        f"'himach cache evict' the one that is not meant ({self._name}, or '{self._name}{SUFFIX}')"
                    )

    def agree_on_author(self, comm: Communicator, by_launch: Sequence[HeldSlices]) -> None:
        """Check that all slices and existing frames on all nodes belong to one simulation (collective)."""

        def find_authors() -> tuple[set[bytes], set[bytes]]:
            slices = {item.attachment(AUTHOR) for launch in by_launch for item in launch.datasets if item.native}
            frames: set[bytes | None] = set()
            if self._store is not None and self.is_there:
                frames = {self._store.dataset(self._name, self._kind.generation).attachment(AUTHOR)}
            return {item for item in frames if item}, {item for item in slices if item}

        by_rank = comm.allgather(run_collectively(comm, find_authors))
        frames, slices = (sorted(set().union(*(item[i] for item in by_rank))) for i in range(2))
        if len({*frames, *slices}) < 2:
            self._author = next(iter([*frames, *slices]), None)
            return

        def refuse() -> None:
            text = f"frames of {_quote(frames)}, and " if frames else ""
            raise StoreConflictError(
                f"dataset {self._name} has {text}slices of {_quote(slices)}: 'himach cache evict' the one that is not "
                f"meant ({self._name}, or '{self._name}{SUFFIX}')"
            )

        run_collectively(comm, refuse)

    def close(self) -> None:
        """Release the segment written."""
        if self._dataset is not None:
            with suppress(StoreError):
                self._dataset.close()


def _quote(authors: Sequence[bytes]) -> str:
    return ", ".join(f"'{author.decode(errors='replace')}'" for author in authors)


#: Incomplete frames whose reason is printed.
MAX_NAMED_FRAMES = 8
#: Incomplete frames whose reason is kept.
MAX_REASONS = 1 << 20


@dataclass
class Assembled:
    """Result of assembling, the same on every rank."""

    frames: int = 0  # assembled by this call
    waiting: int = 0  # frames with atoms in no slice yet
    absent: dict[int, str] = field(default_factory=dict)  # reason by number of a missing frame
    nodes: dict[str, int] = field(default_factory=dict)  # frames assembled by each node in this call
    aside: int | None = None

    def note(self, reasons: Mapping[int, str]) -> None:
        """Record why frames are missing, unless a reason is known."""
        for number, reason in reasons.items():
            if len(self.absent) < MAX_REASONS:
                self.absent.setdefault(number, reason)

    def __str__(self) -> str:
        places = ", ".join(f"{count} on {node}" for node, count in self.nodes.items())
        text = f"{self.frames} frames assembled{f' ({places})' if places else ''}"
        if self.waiting:
            text += f"; of {self.waiting} some slices are missing"
        if self.aside is not None:
            text += f"; slices of an earlier launch are left aside from frame {self.aside} on, as a later one has begun"
            text += ": their frames are there when it has pushed them"
        reasons = "".join(
            f"\n  frame {number}: {reason}" for number, reason in sorted(self.absent.items())[:MAX_NAMED_FRAMES]
        )
        return text + (f"; not whole:{reasons}" if reasons else "")


#: Frames in one reduction of atom counts.
CHUNK_FRAMES = 1 << 20


def totals(
    leaders: Communicator, sum_op: Any, slices: HeldSlices, n_atoms: int, at_once: int = CHUNK_FRAMES
) -> Iterator[tuple[range | Numbers, npt.NDArray[Any]]]:
    """Yield batches of frames and the atoms that all nodes have of each (collective over the nodes' leaders)."""
    # After lost acknowledgements, every node may have the whole frame.
    kind = np.uint32 if n_atoms * leaders.size <= np.iinfo(np.uint32).max else np.int64
    numbers = leaders.allreduce(slices.frames, op=operator.or_)
    for start in range(0, len(numbers), at_once):
        first, last = numbers[start], numbers[min(start + at_once, len(numbers)) - 1]
        frames: range | Numbers = range(first, last + 1)
        if len(frames) > at_once:
            frames = np.array(numbers[start : start + at_once].to_array(), np.int64)
        sums = counts = slices.count_atoms(frames, kind)
        if leaders.size > 1:
            leaders.Allreduce(counts, sums := np.empty_like(counts), op=sum_op)
        yield frames, sums


def pick(frames: range | Numbers, places: Numbers) -> Numbers:
    """Return the frames at some positions."""
    return frames.start + places if isinstance(frames, range) else frames[places]


#: Reported in place of the number of atoms by a node that has the whole frame.
WHOLE_FRAME = -1


def assign(shares: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the node of each frame, int64 (frames,).

    `shares`: int64 (nodes, frames): atoms that each node has of each frame; `WHOLE_FRAME` where it has the whole frame.
    """
    nodes, frames = shares.shape
    holds = (shares == WHOLE_FRAME).any(axis=0)
    chosen = np.where(holds, np.argmax(shares == WHOLE_FRAME, axis=0), -1)
    # Each takes its part of all frames, first those of which it has most; who has least takes what is left.
    for node in np.argsort(-shares.sum(axis=1), kind="stable"):
        unassigned = np.flatnonzero(chosen < 0)
        room = max(0, -(-frames // nodes) - np.count_nonzero(chosen == node))
        chosen[unassigned[np.argsort(-shares[node, unassigned], kind="stable")[:room]]] = node
    return chosen


class Finder:
    """Finds frames with complete slices (collective over the nodes' first ranks); `writers` of these have stores."""

    def __init__(
        self,
        leaders: Communicator,
        sum_op: Any,
        writers: Numbers,
        target: AssemblyTarget,
        kind: SliceKind,
        slices: HeldSlices,
        result: Assembled,
    ) -> None:
        self.leaders, self.target, self.slices, self.result = leaders, target, slices, result
        self._sum, self._writers, self.n_atoms = sum_op, writers, kind.n_atoms

    def plans(self, frames_at_once: int) -> Iterator[tuple[Numbers, npt.NDArray[np.int32]]]:
        """Yield frames that are complete by their atom counts, and the rank of each: `frames_at_once` a rank."""
        batch = frames_at_once * max(1, len(self._writers))
        for frames, atoms in totals(self.leaders, self._sum, self.slices, self.n_atoms):
            whole = pick(frames, np.flatnonzero(atoms >= self.n_atoms))
            self._note_incomplete(pick(frames, np.flatnonzero((atoms > 0) & (atoms < self.n_atoms))))
            for start in range(0, len(whole), batch):
                numbers = whole[start : start + batch]
                yield numbers, self._writers[assign(self._shares(numbers)[self._writers])].astype(np.int32)

    def _shares(self, numbers: Numbers) -> Numbers:
        """Return the atoms that each node has of frames, `WHOLE_FRAME` for a whole frame (collective)."""
        counts = self.slices.count_atoms(numbers)
        counts[run_collectively(self.leaders, partial(self.target.holds, numbers))] = WHOLE_FRAME
        return np.stack(self.leaders.allgather(counts))

    def _native(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which frames any node has natively (collective)."""
        own = run_collectively(self.leaders, partial(self.target.holds, numbers))
        anywhere: npt.NDArray[np.bool_] = self.leaders.allreduce(own, op=np.logical_or)
        return anywhere

    def _note_incomplete(self, numbers: Numbers) -> None:
        """Record incomplete frames; drop the remaining slices of frames that are native already."""
        if not len(numbers):
            return
        native = self._native(numbers)
        run_collectively(self.leaders, partial(self.slices.drop, numbers[native]))
        waiting = numbers[~native]
        self.result.waiting += len(waiting)
        listed = [int(number) for number in waiting[:MAX_NAMED_FRAMES]]
        by_node = self.leaders.allgather((self.slices.ranks, [self.slices.ranks_with(number) for number in listed]))
        ranks = {rank for node_ranks, _ in by_node for rank in node_ranks}
        for i, number in enumerate(listed):
            missing = sorted(ranks - {rank for _, having in by_node for rank in having[i]})
            names = ", ".join(map(str, missing[:MAX_NAMED_FRAMES]))
            reason = f"no slice of rank{'s' * (len(missing) > 1)} {names}{', ...' * (len(missing) > MAX_NAMED_FRAMES)}"
            self.result.note({number: reason if missing else "some atoms are in no slice"})

    def drop_aside(self) -> None:
        """Record the slices left aside; drop those of frames that are native by now (collective)."""
        numbers = np.unique(np.concatenate(self.leaders.allgather(self.slices.aside)))
        native = self._native(numbers)
        run_collectively(self.leaders, partial(self.slices.drop, numbers[native]))
        if not native.all():
            first = int(numbers[~native][0])
            self.result.aside = first if self.result.aside is None else min(self.result.aside, first)

    def forget_native(self) -> None:
        """Remove the reasons of frames that another process has assembled meanwhile (collective)."""
        absent = self.result.absent
        numbers = np.array(sorted(n for n, reason in absent.items() if not reason.startswith(FOREIGN)), np.int64)
        for number in numbers[self._native(numbers)].tolist():
            absent.pop(number, None)
