"""The files of a Zarr directory, as they lie there: `is_zarr()`, and `ZarrFiles`, which tells metadata from chunks.

It needs no zarr: what a dataset is called by and compared with is told where zarr is not installed, too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_NODES = (".zarray", "zarr.json")  # what says what an array is, in the second and the third version of the format
_METADATA = frozenset({*_NODES, ".zgroup", ".zattrs", ".zmetadata"})
_ROOTS = ("zarr.json", ".zgroup", ".zmetadata")
SUFFIXES = (".zarr", ".zarrmd")


def is_zarr(path: str) -> bool:
    """Tell a directory of Zarr from others, by what is in it, or by its suffix."""
    return path.endswith(SUFFIXES) or any(os.path.exists(os.path.join(path, name)) for name in _ROOTS)


@dataclass(frozen=True)
class ZarrFiles:
    """Files below a directory of Zarr.

    Attributes
    ----------
    metadata
        What says which arrays there are: paths, sorted.
    chunks
        Of each array (or folder of another kind), by its path, its other files in the order of their numbers.
    """

    metadata: tuple[str, ...]
    chunks: dict[str, list[str]]

    @classmethod
    def of(cls, path: str) -> ZarrFiles:
        """List them; raises OSError."""
        metadata: list[str] = []
        chunks: dict[str, list[str]] = {}
        owner = {path: path}  # of a folder's files: the array that it belongs to
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
    def ends(self) -> tuple[str, ...]:
        """The metadata, and the first and the last chunk of each array."""
        return (*self.metadata, *dict.fromkeys(some[end] for some in self.chunks.values() for end in (0, -1)))

    def some(self, most: int) -> list[str]:
        """Return the metadata, and all other files, or where there are more than `most`, as many all over them."""
        files = [file for some in self.chunks.values() for file in some]
        count = len(files)
        return [*self.metadata, *(files if count <= most else (files[i * count // most] for i in range(most)))]


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d+", name)], name


def _raise(error: OSError) -> None:
    raise error
