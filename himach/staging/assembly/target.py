"""`AssemblyTarget`, the dataset of whole frames in a node's store; `FrameWriter` writes frames in a thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from himach.io.datasets.attachment import AUTHOR, has_stamp
from himach.io.frame_source import Numbers
from himach.io.push.held_slices import SUFFIX, HeldSlices, SliceKind, find_slices
from himach.io.store.bodhi import GatherHandle
from himach.io.store.quota import survey
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError, StoreFullError, StoreNotFoundError
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator


class AssemblyTarget:
    """Whole frames of one kind in this node's store."""

    def __init__(self, store: Store | None, name: str, kind: SliceKind) -> None:
        self._store, self._name, self._kind = store, name, kind
        self._dataset: Dataset | None = None
        self._author: bytes | None = None
        self._streams = False
        self._opening = threading.Lock()

    @property
    def is_there(self) -> bool:
        """Whether the dataset exists."""
        return self._store is not None and self._kind.generation in self._store.generations(self._name)

    def open(self) -> Dataset:
        """Open the dataset, creating it if it does not exist."""
        with self._opening:
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


Bytes = npt.NDArray[np.uint8]

#: Reason for slices that do not match the frame already stored.
FOREIGN = "its slices are not those of the frame that is there"
#: Bytes of frames per sync.
DURABLE_BYTES = 32 << 20


class FrameWriter:
    """Writes frames and tracks which are on disk."""

    def __init__(self, target: AssemblyTarget, n_atoms: int) -> None:
        self.full: StoreFullError | None = None
        self.lost: StoreFullError | None = None
        self.count = 0
        self._target = target
        self._at_once = max(1, DURABLE_BYTES // (12 * n_atoms))
        self._dataset: Dataset | None = None
        self._unsynced: list[int] = []  # written, but not known to be on disk
        self._lock = threading.Lock()  # guards _durable and _bad
        self._durable: list[int] = []
        self._bad: dict[int, str] = {}

    def write(self, gather: GatherHandle, incoming: Sequence[Bytes]) -> bool:
        """Assemble this rank's frames of a round and write them; return False if the store is full: `resume` then."""
        for data in incoming:
            if len(data):
                gather.take(data)
        return self.resume(gather)

    def resume(self, gather: GatherHandle) -> bool:
        """Write the rest of a round; return the same as `write`."""
        if not gather.frames:
            return True
        dataset = self._dataset = self._dataset or self._target.open_to_write()
        failures: dict[int, tuple[str, bool]] = {}
        pending = True
        while pending and self.full is None:
            before = len(self._unsynced)
            try:
                most = self._at_once - len(self._unsynced)
                pending = gather.write(dataset.writer(native=True), most, self._unsynced, failures)
            except StoreFullError as error:
                self.full = error
            self.count += len(self._unsynced) - before
            if len(self._unsynced) >= self._at_once:
                self.flush()
        with self._lock:
            for number, (reason, stored) in failures.items():
                self._bad[number] = f"{FOREIGN} ({reason})" if stored else reason
        return not pending

    def flush(self) -> None:
        """Sync all written frames to disk."""
        if self._dataset is None or not self._unsynced:
            return
        written, self._unsynced = self._unsynced, []
        try:
            self._dataset.flush(durable=True)
        except StoreFullError as error:
            self.full = self.lost = error
            return
        if self.full is not None:  # a full disk may undo earlier writes
            stored = self._dataset.holds(np.array(written, np.int64), native=True)
            if not stored.all():
                self.lost = self.full
                written = np.array(written, np.int64)[stored].tolist()
        with self._lock:
            self._durable += written

    def take(self) -> tuple[list[int], dict[int, str]]:
        """Return the frames on disk and the reasons for missing ones since the last call; from any thread."""
        with self._lock:
            result = self._durable, self._bad
            self._durable, self._bad = [], {}
        return result
