"""`Store` and `Dataset`: Python access to this node's frame store, by the C library in ``native/``."""

import contextlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.errors import StoreConflictError, StoreError, StoreFullError
from himach.files import whole_file
from himach.io.frame_source import WHOLE, ReadOptions
from himach.io.store import bodhi
from himach.io.store.bodhi import (
    StoreBusyError,
    StoreNotFoundError,
    StorePoisonedError,
    StoreRefusedError,
    StoreSystemError,
    StoreVersionError,
)
from himach.io.store.cached_frames import CachedFrames, Reading
from himach.locks import locked

__all__ = [
    "Dataset",
    "Store",
    "StoreBusyError",
    "StoreConflictError",
    "StoreError",
    "StoreFullError",
    "StoreNotFoundError",
    "StorePoisonedError",
    "StoreRefusedError",
    "StoreSystemError",
    "StoreVersionError",
]

Vectors = npt.NDArray[np.float32]

ALL_OF_SLICES = bodhi.POSITIONS | bodhi.VELOCITIES | bodhi.FORCES | bodhi.IDS
SUBDIRECTORY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")


class Store(bodhi.StoreHandle):
    """The frame store in one directory."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        read_only: bool = False,
        allow_network: bool = False,
        follow_link: bool = True,
    ) -> None:
        self.path = Path(path)
        if create and not read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = bodhi.CREATE if create and not read_only else 0
        flags |= bodhi.READ_ONLY if read_only else 0
        flags |= bodhi.ALLOW_NETWORK if allow_network else 0
        if not follow_link and self.path.is_symlink():
            raise StoreRefusedError(f"{self.path} is a symbolic link; another user may have put it there")
        super().__init__(os.fsencode(self.path), flags)
        self._metas: dict[str, tuple[str, bytes]] = {}

    def dataset(
        self, name: str, generation: bytes = b"", *, create: bool = True, segment_bytes: int = 0, packed: bool = True
    ) -> "Dataset":
        """Open one generation of a dataset."""
        return Dataset(self, name, generation, create, segment_bytes=segment_bytes, packed=packed)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock under which a dataset is given its name."""
        return locked(self.path)

    def directories(self) -> list[str]:
        """Return the subdirectories of datasets, for `open_directory`; empty for a deleted store."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if SUBDIRECTORY.fullmatch(entry.name))
        except FileNotFoundError:
            return []

    def open_directory(self, directory: str) -> "Dataset":
        """Open the dataset in a subdirectory, whatever its name is."""
        return Dataset(self, directory=directory)

    def contents(self) -> list[tuple[str, bytes]]:
        """Return name and generation of each dataset; this does not count as use of a dataset."""
        # A directory's name is derived from these two, so known entries stay valid.
        metas = {name: self._metas.get(name) or _read_meta(self.path / name / "meta") for name in self.directories()}
        self._metas = {directory: meta for directory, meta in metas.items() if meta}
        return list(self._metas.values())

    def names(self) -> list[str]:
        """Return the names of the datasets that the store holds."""
        return sorted({name for name, _ in self.contents()})

    def generations(self, name: str) -> list[bytes]:
        """Return the generations of a dataset that the store holds."""
        return [generation for other_name, generation in self.contents() if other_name == name]

    def remove(self, directory: str) -> None:
        """Delete a dataset; none of its segments may be in use."""
        if not SUBDIRECTORY.fullmatch(directory):
            raise ValueError(f"{directory!r} is no subdirectory of a dataset")
        dataset = None
        with contextlib.suppress(StoreNotFoundError):
            dataset = self.open_directory(directory)
        if dataset is not None:
            self._evict_all(dataset)
        place = self.path / directory
        names = os.listdir(place)
        for name in names:
            # Keep the index of a segment that another process writes meanwhile; the meta file is rewritten below.
            if not name.endswith(".seg") and f"{name[:-4]}.seg" not in names:
                (place / name).unlink(missing_ok=True)
        try:
            place.rmdir()
        except OSError as error:
            with contextlib.suppress(StoreError):
                if dataset is not None:
                    self.dataset(dataset.name, dataset.generation)
            raise StoreBusyError(f"{place} is in use: {error.strerror}") from None

    def _evict_all(self, dataset: "Dataset") -> None:
        """Evict every segment, those without frames last: they record drops from others, and evictions may add some."""
        while segments := sorted(dataset.segments(), key=lambda segment: segment["frames"] == 0):
            busy = []
            for segment in segments:
                try:
                    self.evict(dataset.path.name, segment["id"], native=segment["kind"] == bodhi.NATIVE)
                except StoreBusyError as error:
                    busy.append(error)
                except StoreNotFoundError:  # another process was quicker
                    pass
            if len(busy) == len(segments):
                raise busy[0]
            dataset.refresh()


class Dataset(bodhi.DatasetHandle, CachedFrames):
    """Frames of one generation of one trajectory in a store, as of the last `refresh` and flushes since."""

    store: Store

    def __init__(
        self,
        store: Store,
        name: str = "",
        generation: bytes = b"",
        create: bool = False,
        directory: str | None = None,
        *,
        segment_bytes: int = 0,
        packed: bool = True,
    ) -> None:
        super().__init__(store, name, generation, create, directory)
        self._segment_bytes = segment_bytes
        self._encoding = bodhi.ENCODING_AUTO if packed else bodhi.ENCODING_RAW
        self._writers: dict[int, bodhi.WriterHandle] = {}  # they go before this object does
        self.identity = store.identity

    @property
    def path(self) -> Path:
        """Directory of the dataset; files named ``x-...`` belong to the caller, see `attach`."""
        return self.store.path / self.directory

    def frames(self, native: bool, low: int = 0, stop: int = bodhi.MAX_NUMBER + 1) -> BitMap64:
        """Return the numbers of one kind from `low` on."""
        frames = BitMap64()
        for numbers in self._chunks(bodhi.NATIVE if native else bodhi.ALIEN, low):
            frames |= BitMap64(numbers)
        return frames

    def bounds(self, *, native: bool = False) -> tuple[int, int] | None:
        """Return the bounds without a bitmap of the frames."""
        kinds = [bodhi.NATIVE] if native else [bodhi.NATIVE, bodhi.ALIEN]
        ends = [int(numbers[end]) for kind in kinds for numbers in self._chunks(kind) for end in (0, -1)]
        return (min(ends), max(ends)) if ends else None

    def _chunks(self, kind: int, start: int = 0) -> Iterator[npt.NDArray[np.uint64]]:
        while (numbers := self.numbers(kind, start, bodhi.NUMBERS_AT_ONCE)).size:
            yield numbers
            start = int(numbers[-1]) + 1

    def read(self, numbers: npt.ArrayLike, options: ReadOptions = WHOLE) -> Reading:
        """Read frames, in the order of `numbers`, ahead of the caller and without the GIL; see `CachedFrames.read`."""
        return Reading(self.open_reader(numbers, options))

    def place(self) -> tuple[int, int] | None:
        """Return device and inode of the directory at `path`; None if it no longer is a dataset."""
        try:
            (self.path / "meta").stat()
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def write(
        self,
        number: int,
        time: float,
        box: Vectors | None,
        positions: Vectors,
        velocities: Vectors | None = None,
        forces: Vectors | None = None,
        *,
        native: bool = False,
    ) -> bool:
        """Append a frame (Å, ps, kJ/mol); return False if the same one exists, as a native or in this kind.

        `flush` makes it visible and acknowledges it. Other content under the number raises StoreConflictError. After a
        StoreFullError, frames since the last `flush` may be lost, and later calls may succeed.
        """
        return self.writer(native).append(number, time, positions, box, velocities, forces)

    def writer(self, native: bool) -> bodhi.WriterHandle:
        """Return the writer of the frames of one kind."""
        kind = bodhi.NATIVE if native else bodhi.ALIEN
        if kind not in self._writers:
            # A reference back to this object would keep both alive until the next garbage collection.
            self._writers[kind] = self.open_writer(kind, self._segment_bytes, encoding=self._encoding, keeps=False)
        return self._writers[kind]

    @property
    def written(self) -> int:
        """Number of frames that this object has written and made visible."""
        return sum(writer.written for writer in self._writers.values())

    def flush(self, *, durable: bool = False) -> None:
        """Make the frames written so far visible; they survive this process, and with `durable` the machine."""
        for writer in self._writers.values():
            writer.flush(durable)

    def evict(self, segment: int) -> None:
        """Delete a whole segment; see `Store.evict`."""
        natives = [item["kind"] == bodhi.NATIVE for item in self.segments() if item["id"] == segment]
        if not natives:
            raise StoreNotFoundError(f"{self.path} has no segment {segment:016x}")
        self.store.evict(self.path.name, segment, native=natives[0])
        self.refresh()

    def attach(self, name: str, content: bytes | Sequence[bytes | memoryview]) -> None:
        """Store a small file beside the frames (a topology, the stamp of an origin), replacing one of that name."""
        target = self._attachment_path(name)
        try:
            with whole_file(target, mode=0o600, sync=True, prefix="tmp-") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
        except OSError as error:
            raise StoreSystemError(f"{target}: {error.strerror}") from None

    def attachment(self, name: str) -> bytes | None:
        """Return the attachment of this name, or None."""
        try:
            return self._attachment_path(name).read_bytes()
        except OSError:
            return None

    def own_attachment(self, name: str) -> bytes | None:
        """Return an attachment if only this user can write store, dataset and file; the checks are on open files."""
        file = self._attachment_path(name)
        handles: list[int] = []
        try:
            for part in (file.parent.parent, file.parent.name, file.name):
                flags = os.O_RDONLY | (os.O_NOFOLLOW if handles else 0) | (os.O_DIRECTORY if part != file.name else 0)
                handles.append(os.open(part, flags, dir_fd=handles[-1] if handles else None))
                status = os.fstat(handles[-1])
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    return None
            with open(handles.pop(), "rb") as content:
                return content.read()
        except OSError:
            return None
        finally:
            for descriptor in handles:
                os.close(descriptor)

    def _attachment_path(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise ValueError(f"name {name!r} may have 1 to 64 letters, digits, dots, dashes and underscores")
        return self.path / f"x-{name}"

    def close(self) -> None:
        """Flush written frames and release the segments; reading still works."""
        writers, self._writers = self._writers, {}
        errors = []
        for writer in writers.values():
            try:
                writer.close()
            except StoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _read_meta(path: Path) -> tuple[str, bytes] | None:
    """Return name and generation from a dataset's meta file; None if it is damaged or of another version."""
    try:
        data = path.read_bytes()
        magic, version, _, size, checksum, n_name, n_generation = struct.unpack_from("<4sHHIIII", data)
    except (OSError, struct.error):
        return None
    computed = bodhi.crc32c(data[16:size], bodhi.crc32c(bytes(4), bodhi.crc32c(data[:12])))
    if magic != b"BdhM" or version != 1 or size != 24 + n_name + n_generation or computed != checksum:
        return None
    return data[24 : 24 + n_name].decode("utf-8", "surrogateescape"), data[24 + n_name : size]
