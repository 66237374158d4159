"""H5MD in a Zarr directory by zarr: `ZarrDirectory`, a `FrameFile`; `is_zarr()`, and `ZarrFiles`, which lists files.

Only what reads arrays imports zarr, so that datasets can be named and compared where zarr is not installed.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError, UsageError
from himach.io.frame_source import Numbers
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.h5md.layout import Rows
from himach.io.trajectories.readahead import ask_for

_TICKS = ("/time", "/step")
#: Bound on an array's files, whose names are derived from metadata.
MOST_FILES = 10**7
_NODES = (".zarray", "zarr.json")  # metadata of an array in format versions 2 and 3
_METADATA = frozenset({*_NODES, ".zgroup", ".zattrs", ".zmetadata"})
_ROOTS = ("zarr.json", ".zgroup", ".zmetadata")
SUFFIXES = (".zarr", ".zarrmd")
#: Arrays that must have all chunks. Of others, zarr writes no chunk of zeros.
WHOLE = ("position/value", "edges/value")


def is_zarr(path: str) -> bool:
    """Return whether a path is a Zarr directory, by its suffix or its files."""
    if not os.path.isdir(path):
        return False
    return path.rstrip("/").endswith(SUFFIXES) or any(os.path.exists(os.path.join(path, name)) for name in _ROOTS)


@dataclass(frozen=True)
class ZarrFiles:
    """Files in a Zarr directory."""

    metadata: tuple[str, ...]  # sorted paths
    chunks: dict[str, list[str]]  # of each array

    @classmethod
    def from_path(cls, path: str) -> "ZarrFiles":
        """List a directory; raises OSError."""
        metadata: list[str] = []
        chunks: dict[str, list[str]] = {}
        owner = {path: path}  # folder -> path of the array that its files belong to
        for folder, folders, names in os.walk(path, onerror=_raise):
            node = folder if any(name in names for name in _NODES) else owner[folder]
            owner.update((os.path.join(folder, name), node) for name in folders)
            for name in names:
                if name in _METADATA:
                    metadata.append(os.path.join(folder, name))
                else:
                    chunks.setdefault(node, []).append(os.path.join(folder, name))
        ordered = {node: sorted(chunks[node], key=lambda file: _numbers(file[len(node) :])) for node in sorted(chunks)}
        return cls(tuple(sorted(metadata)), ordered)

    @property
    def stamps(self) -> tuple[str, ...]:
        """Metadata, and the first and last chunk of each array."""
        return (*self.metadata, *dict.fromkeys(files[end] for files in self.chunks.values() for end in (0, -1)))

    def sample_files(self, limit: int) -> list[str]:
        """Return the metadata and all chunks, or a spread sample of `limit` chunks."""
        files = [file for chunks in self.chunks.values() for file in chunks]
        count = len(files)
        return [*self.metadata, *(files if count <= limit else (files[i * count // limit] for i in range(limit)))]


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d+", name)], name


def _raise(error: OSError) -> None:
    raise error


class ZarrDirectory(H5mdFile):
    """H5MD in a Zarr directory, as zarrtraj writes it; see `H5mdFile`."""

    kind = "ZARRMD"

    def content(self, limit: int) -> list[str]:
        """Return the files that hold the trajectory's content, a spread sample of more than `limit` chunks."""
        return ZarrFiles.from_path(self.path).sample_files(limit)

    def frame_files(self, indices: Numbers) -> set[str]:
        """Return the files of these frames."""
        files: set[str] = set()
        elements = [item for item in (*self._layout.vectors.values(), self._layout.edges) if item is not None]
        for element in elements:
            if element.value is None:
                array = self._array(element.path)
                rows = indices if element.rows is None else element.rows[indices]
                files.update(file for file, _ in array.files(np.unique(rows[rows >= 0] // array.file_rows).tolist()))
        return files

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of the chunks of these frames."""
        for file in sorted(self.frame_files(np.asarray(indices, dtype=np.int64))):
            ask_for(file, [(0, 0)])  # no length: to the end of the file

    def _stamps(self) -> tuple[str, ...]:
        return ZarrFiles.from_path(self.path).stamps

    def _size(self) -> int:
        return sum(os.path.getsize(file) for paths in ZarrFiles.from_path(self.path).chunks.values() for file in paths)

    def _open(self) -> Any:
        try:
            import zarr
        except ImportError:
            raise UsageError(f"{self.path}: Zarr directories need zarr: pip install 'himach[zarr]'") from None
        try:
            return zarr.open_group(self.path, mode="r")
        except FileNotFoundError:
            raise TrajectoryError(
                f"{self.path} is no group of Zarr: it has neither zarr.json nor .zgroup; copy it again, with all files"
            ) from None

    def _close(self, root: Any) -> None:
        root.store.close()

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
        counts = [-(-int(length) // int(size)) for length, size in zip(array.shape, sizes, strict=True)]
        if math.prod(counts) > MOST_FILES:
            raise TrajectoryError(f"{self.folder} has more than {MOST_FILES} chunks by its metadata")
        self.n_files, self._others = counts[0], counts[1:]

    def files(self, numbers: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Yield the files of chunks by their numbers along the rows, each with its number."""
        for number in numbers:
            for others in np.ndindex(*self._others):
                key = self.array.metadata.encode_chunk_key((number, *others))
                yield os.path.join(self.folder, key), number

    def read(self, first: int, stop: int, columns: int | None) -> npt.NDArray[Any]:
        """Read rows; raises FileNotFoundError for a missing chunk, and ValueError for one cut off."""
        missing: dict[int, list[str]] = {}
        for file, number in self.files(range(first // self.file_rows, -(-stop // self.file_rows))):
            if not os.path.exists(file):
                missing.setdefault(number, []).append(file)
            elif self._blosc:
                _check_blosc(file)
        for number, absent in missing.items():
            if not self._may_be_zeros(number, len(absent)):
                raise FileNotFoundError(f"its chunk {absent[0]} is missing")
        return super().read(first, stop, columns)

    def _may_be_zeros(self, number: int, missing: int) -> bool:
        path = self.array.path
        if path.endswith(WHOLE):
            return False
        if path.startswith("observables/"):
            return True
        first = number == 0 and self.file_rows == 1
        return first or (not path.endswith(_TICKS) and missing < math.prod(self._others))


def _check_blosc(file: str) -> None:
    """Compare a chunk's size with its header, as Blosc reads past the end of a cut chunk."""
    with open(file, "rb") as chunk:
        head, size = chunk.read(16), os.fstat(chunk.fileno()).st_size
    recorded = int.from_bytes(head[12:16], "little")
    if len(head) < 16 or recorded != size:
        raise ValueError(f"its chunk {file} has {size} bytes, and {recorded} when it was written")
