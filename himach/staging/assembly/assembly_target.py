"""`AssemblyTarget`, the dataset of whole frames in a node's store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from himach.io.datasets.attachment import AUTHOR, has_stamp
from himach.io.frame_source import Numbers
from himach.io.push.held_slices import SUFFIX, HeldSlices, SliceKind, find_slices
from himach.io.store.quota import survey
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

    def advice(self) -> str:
        """Return advice for a store that is full."""
        text = "slices are deleted when frames are made of whole segments of them"
        if self._store is None:
            return text
        slices = find_slices(self._store, self._name).get(self._kind, HeldSlices())
        # Frames assembled from one segment of each rank exist beside all slices for a while.
        extra = sum(max((segment["bytes"] for segment in dataset.segments()), default=0) for dataset in slices.datasets)
        used = survey(self._store.path).used
        quota = (used + extra + extra // 8 >> 20) + 4
        return (
            f"{text}, which takes a larger quota for a while: 'himach stage {self._name} --assemble --quota "
            f"{quota}MiB', or make room ('himach cache list', 'himach cache evict')"
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
