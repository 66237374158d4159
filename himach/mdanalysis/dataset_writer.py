"""`HimachWriter` writes frames of MDAnalysis to a dataset of this node's store; `name_writers()` registers it."""

import fcntl
import functools
import os
from collections.abc import Callable
from typing import Any

from MDAnalysis.coordinates.base import WriterBase

from himach.errors import StoreConflictError, UsageError
from himach.io.datasets.attachment import AUTHOR, has_stamp
from himach.io.datasets.opening import open_to_write
from himach.io.store.store import Dataset
from himach.mdanalysis.dataset_names import is_url, parse_dataset

WRITING = "x-writing"  # beside a dataset's frames: locked by their writer
FLUSH_BYTES = 64 << 20  # after which frames become visible to others


class HimachWriter(WriterBase):  # type: ignore[misc]
    """Writes frames natively to this node's store, as those that a simulation pushes: numbered from 0.

    A dataset is never written over. A frame that is there already is taken if it is the same to the last bit, so that
    a script that is run again may write the same once more. While one writes, no other writer can, in this process or
    another; nor can one that pushes by a server, ever, nor the other way round.
    """

    format = "HIMACH"
    multiframe = True
    units = {"time": "ps", "length": "Angstrom", "velocity": "Angstrom/ps", "force": "kJ/(mol*Angstrom)"}  # noqa: RUF012

    def __init__(
        self,
        filename: str | os.PathLike[str],
        n_atoms: int | None,
        convert_units: bool = True,
        cache: str = "auto",
        identity: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._dataset: Dataset | None = None
        self._lock_descriptor = -1  # of the lock that is held while frames are written
        self.filename = os.fspath(filename)
        name = parse_dataset(filename)
        if n_atoms is None or n_atoms < 1:
            raise UsageError(
                f"{self.filename}: a writer needs n_atoms, the number of atoms in every frame, not {n_atoms}"
            )
        if os.path.isabs(name):
            raise UsageError(
                f"{self.filename} is the name of a file; a dataset that is written has a name such as run8"
            )
        self.n_atoms = n_atoms
        self.frames_written = 0
        self._unflushed = 0
        self._name = name
        self._identity = identity or f"MDAnalysis in {os.getcwd()}"
        self._store = open_to_write(cache, f"{self.filename} cannot be written: there is no cache")

    def _write_next_frame(self, obj: Any) -> None:
        """Write the present frame of an AtomGroup or Universe."""
        try:
            atoms = obj.atoms
            ts = atoms.universe.trajectory.ts
        except AttributeError:
            raise TypeError(f"{obj!r} is no AtomGroup or Universe, whose frame could be written") from None
        if atoms.n_atoms != self.n_atoms:
            raise ValueError(f"{atoms.n_atoms} atoms are no frame of {self.filename}, which has {self.n_atoms}")
        frame = (
            float(ts.time),
            ts.dimensions,
            atoms.positions,
            atoms.velocities if ts.has_velocities else None,
            atoms.forces if ts.has_forces else None,
        )
        if self._dataset is None:
            self._begin(frame)
            return
        self._write(frame)

    def _begin(self, frame: tuple[Any, ...]) -> None:
        """Write the first frame while no other process can give the dataset its name."""
        with self._store.locked():
            for generation in self._store.generations(self._name):
                if has_stamp(self._store.dataset(self._name, generation, create=False)):
                    raise StoreConflictError(
                        f"dataset {self._name} is of a trajectory that was staged; choose another name, or "
                        f"'himach cache evict {self._name}' first"
                    )
            dataset = self._store.dataset(self._name)
            identity = self._identity.encode(errors="surrogateescape")
            author = dataset.attachment(AUTHOR)
            if author and author != identity and dataset.native:
                raise StoreConflictError(
                    f"dataset {self._name} has frames of '{author.decode(errors='replace')}'; choose another name, or "
                    f"'himach cache evict {self._name}' first"
                )
            self._lock_descriptor = _lock_dataset(dataset)
            self._dataset = dataset
            dataset.attach(AUTHOR, identity)
            self._write(frame)
            dataset.flush()

    def _write(self, frame: tuple[Any, ...]) -> None:
        assert self._dataset is not None
        self._dataset.write(self.frames_written, *frame, native=True)
        self.frames_written += 1
        self._unflushed += sum(0 if part is None else part.nbytes for part in frame[2:])
        if self._unflushed > FLUSH_BYTES:
            self._dataset.flush()
            self._unflushed = 0

    def close(self) -> None:
        """Make written frames visible to others; a second call does nothing."""
        dataset, self._dataset = self._dataset, None
        descriptor, self._lock_descriptor = self._lock_descriptor, -1
        try:
            if dataset is not None:
                dataset.close()
        finally:
            if descriptor >= 0:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor, too
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_lock_descriptor"):
            self.close()


def _lock_dataset(dataset: Dataset) -> int:
    """Lock a dataset for one writer until the returned descriptor is closed.

    Two writers would use the same frame numbers, and not see each other's unflushed frames.
    """
    descriptor = os.open(dataset.path / WRITING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreConflictError(
            f"dataset {dataset.name} is being written at this moment by another writer, of this process or another; "
            "close that one first, or choose another name (of ranks, let one write, or each under a name of its own)"
        ) from None
    return descriptor


def name_writers() -> None:
    """Let MDAnalysis find this writer by ``himach://``: it has no hints for writers, and looks for suffixes alone.

    Also keep ``AtomGroup.write()`` from adding a suffix to the name.
    """
    from MDAnalysis.coordinates import core
    from MDAnalysis.core import _get_readers, groups
    from MDAnalysis.lib import util

    def wrap_getter(find: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(find)
        def get_writer_for(filename: Any, format: Any = None, multiframe: Any = None) -> Any:  # noqa: A002
            if format is None and is_url(filename):
                format = HimachWriter.format  # noqa: A001
            return find(filename, format=format, multiframe=multiframe)

        get_writer_for.__dict__["himach"] = True
        return get_writer_for

    def wrap_filename(complete: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(complete)
        def filename(name: Any, *arguments: Any, **options: Any) -> Any:
            return name if is_url(name) else complete(name, *arguments, **options)

        return filename

    if not hasattr(_get_readers.get_writer_for, "himach"):
        util.filename = wrap_filename(util.filename)
        writer_getter = wrap_getter(_get_readers.get_writer_for)
        for module in (_get_readers, core, groups):
            module.get_writer_for = writer_getter
