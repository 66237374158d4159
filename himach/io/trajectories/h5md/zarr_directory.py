"""H5MD in a Zarr directory by zarr: `ZarrDirectory`, a `FrameFile`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError, UsageError
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.h5md.layout import Rows
from himach.io.trajectories.h5md.zarr_files import WHOLE, ZarrFiles
from himach.io.trajectories.readahead import ask_for
from himach.io.trajectories.urls.byte_file import close_mirrors, exists, local_path, read_status
from himach.io.trajectories.urls.names import is_url

Numbers = npt.NDArray[np.int64]
_TICKS = ("/time", "/step")
#: Remote files requested at a time.
AT_ONCE = 8


class ZarrDirectory(H5mdFile):
    """H5MD in a Zarr directory, as zarrtraj writes it; see `H5mdFile`."""

    kind = "ZARRMD"

    def content(self, limit: int) -> list[str]:
        """Return the files that hold the trajectory's content, a spread sample of more than `limit` chunks."""
        return list(self.stamps) if is_url(self.path) else ZarrFiles.from_path(self.path).sample_files(limit)

    def frame_files(self, indices: Numbers) -> set[str]:
        """Return the files of these frames; by URL, those in `stamps`."""
        if is_url(self.path):
            return set(self.stamps)
        files: set[str] = set()
        elements = [item for item in (*self._layout.vectors.values(), self._layout.edges) if item is not None]
        for element in elements:
            if element.value is None:
                array = self._array(element.path)
                assert isinstance(array, ChunkRows)
                rows = indices if element.rows is None else element.rows[indices]
                files.update(file for file, _ in array.files(np.unique(rows[rows >= 0] // array.file_rows).tolist()))
        return files

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of the chunks of these frames; by URL, reading requests them."""
        for file in [] if is_url(self.path) else sorted(self.frame_files(np.asarray(indices, dtype=np.int64))):
            ask_for(file, [(0, 0)])  # no length: to the end of the file

    def _stamps(self) -> tuple[str, ...]:
        return ZarrFiles.from_path(self.path).stamps

    def _size(self) -> int:
        files = ZarrFiles.from_path(self.path)
        if is_url(self.path):  # estimate by the first chunk of each array that must be complete
            complete = (chunks for array, chunks in files.chunks.items() if array.endswith(WHOLE))
            return sum(len(chunks) * read_status(chunks[0]).size for chunks in complete if chunks)
        return sum(os.path.getsize(file) for paths in files.chunks.values() for file in paths)

    def _open(self) -> Any:
        try:
            import zarr
        except ImportError:
            raise UsageError(f"{self.path}: Zarr directories need zarr: pip install 'himach[zarr]'") from None
        try:
            if is_url(self.path):
                from himach.io.trajectories.h5md.url_store import open_url

                return open_url(self.path)
            return zarr.open_group(self.path, mode="r")
        except FileNotFoundError:
            raise TrajectoryError(
                f"{self.path} is no group of Zarr: it has neither zarr.json nor .zgroup; copy it again, with all files"
            ) from None

    def _close(self, root: Any) -> None:
        root.store.close()

    def release(self) -> None:
        """Close the files until the next read."""
        for rows in self._rows.values():
            if is_url(self.path) and rows.array.shards:
                assert isinstance(rows, ChunkRows)
                rows.close_mirrors()
        super().release()

    def _make_rows(self, array: Any) -> Rows:
        return ChunkRows(array, self.path)


class ChunkRows(Rows):
    """Rows of an array whose chunks are files; a missing file is an error unless it may stand for zeros."""

    def __init__(self, array: Any, folder: str) -> None:
        super().__init__(array, array.chunks[0])
        self.folder = os.path.join(folder.rstrip("/"), array.path)
        sizes = array.shards or array.chunks  # a file holds a shard of several chunks
        self.file_rows = sizes[0]
        self._blosc = not array.shards and any("Blosc" in type(codec).__name__ for codec in array.compressors[-1:])
        self._others = [range(-(-length // size)) for length, size in zip(array.shape[1:], sizes[1:], strict=True)]

    def files(self, numbers: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Yield the files of chunks by their numbers along the rows, each with its number."""
        for number in numbers:
            for others in np.ndindex(*map(len, self._others)):
                key = self.array.metadata.encode_chunk_key((number, *others))
                yield os.path.join(self.folder, key), number

    def read(self, first: int, stop: int, columns: int | None) -> npt.NDArray[Any]:
        """Read rows; raises FileNotFoundError for a missing chunk, and ValueError for one cut off."""
        files = list(self.files(range(first // self.file_rows, -(-stop // self.file_rows))))
        missing: dict[int, list[str]] = {}
        if is_url(self.folder) and not self.array.shards:  # all at once; of a shard only needed ranges are read
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda file: ask_for(file[0], [(0, sys.maxsize)]), files))
        for file, number in files:
            if not exists(file):
                missing.setdefault(number, []).append(file)
            elif self._blosc:
                _check_blosc(local_path(file))
        for number, absent in missing.items():
            if not self._may_be_zeros(number, len(absent)):
                raise FileNotFoundError(f"its chunk {absent[0]} is missing")
        rows = super().read(first, stop, columns)
        if not self.array.shards:
            close_mirrors((file for file, _ in files), forget=True)
        return rows

    def close_mirrors(self) -> None:
        """Close the mirrors of remote shards."""
        close_mirrors(file for file, _ in self.files(range(-(-len(self) // self.file_rows))))

    def _may_be_zeros(self, number: int, missing: int) -> bool:
        path = self.array.path
        if path.endswith(WHOLE):
            return False
        if path.startswith("observables/"):
            return True
        first = number == 0 and self.file_rows == 1
        return first or (not path.endswith(_TICKS) and missing < math.prod(map(len, self._others)))


def _check_blosc(file: str) -> None:
    """Compare a chunk's size with its header, as Blosc reads past the end of a cut chunk."""
    with open(file, "rb") as chunk:
        head, size = chunk.read(16), os.fstat(chunk.fileno()).st_size
    recorded = int.from_bytes(head[12:16], "little")
    if len(head) < 16 or recorded != size:
        raise ValueError(f"its chunk {file} has {size} bytes, and {recorded} when it was written")
