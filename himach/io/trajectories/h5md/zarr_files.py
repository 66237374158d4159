"""Files of a Zarr directory: `is_zarr()`, and `ZarrFiles`, which separates metadata from chunks.

It does not import zarr, so that datasets can be named and compared where zarr is not installed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from himach.errors import TrajectoryError
from himach.io.trajectories.urls.byte_file import close_mirrors, local_path, read_status
from himach.io.trajectories.urls.names import is_url
from himach.io.trajectories.urls.transport import RemoteError

_NODES = (".zarray", "zarr.json")  # metadata of an array in format versions 2 and 3
_METADATA = frozenset({*_NODES, ".zgroup", ".zattrs", ".zmetadata"})
_ROOTS = ("zarr.json", ".zgroup", ".zmetadata")
SUFFIXES = (".zarr", ".zarrmd")
#: Bound on an array's chunks, whose names are derived from metadata.
MOST_CHUNKS = 10**7
#: Arrays that must have all chunks. Of others, zarr writes no chunk of zeros.
WHOLE = ("position/value", "edges/value")


def is_zarr(path: str) -> bool:
    """Return whether a path is a Zarr directory, by its suffix or its files; a URL is judged by its suffix."""
    if path.rstrip("/").endswith(SUFFIXES):
        return is_url(path) or os.path.isdir(path)
    return os.path.isdir(path) and any(os.path.exists(os.path.join(path, name)) for name in _ROOTS)


@dataclass(frozen=True)
class ZarrFiles:
    """Files in a Zarr directory."""

    metadata: tuple[str, ...]  # sorted paths
    chunks: dict[str, list[str]]

    @classmethod
    def from_path(cls, path: str) -> ZarrFiles:
        """List a directory, or derive the files of a URL from its metadata; raises OSError and TrajectoryError."""
        if is_url(path):
            return _files_from_metadata(path)
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
        """Metadata, and the first and last chunk of each array; by URL, only of arrays that must be complete."""
        complete = [files for array, files in self.chunks.items() if not is_url(array) or array.endswith(WHOLE)]
        return (*self.metadata, *dict.fromkeys(files[end] for files in complete for end in (0, -1)))

    def sample_files(self, limit: int) -> list[str]:
        """Return the metadata and all chunks, or a spread sample of `limit` chunks."""
        files = [file for chunks in self.chunks.values() for file in chunks]
        count = len(files)
        return [*self.metadata, *(files if count <= limit else (files[i * count // limit] for i in range(limit)))]


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d+", name)], name


def _raise(error: OSError) -> None:
    raise error


def _files_from_metadata(url: str) -> ZarrFiles:
    """Return the files below a URL, assuming that no chunk is missing."""
    folder = url.rstrip("/")
    for name, chunk_keys in (("zarr.json", _chunk_keys_v3), (".zmetadata", _chunk_keys_v2)):
        file = f"{folder}/{name}"
        try:
            read_status(file)
        except RemoteError as error:
            if error.errno == errno.ENOENT:
                continue
            raise
        try:
            with open(local_path(file), "rb") as metadata:
                keys = chunk_keys(json.load(metadata))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise TrajectoryError(f"{file} is no metadata of Zarr: {error!r}") from None
        finally:
            close_mirrors([file])
        if keys:
            arrays = {f"{folder}/{array}": [f"{folder}/{array}/{key}" for key in keys[array]] for array in sorted(keys)}
            return ZarrFiles((file,), arrays)
    raise TrajectoryError(
        f"{url} tells nowhere which arrays it has, and a web server has no list of files: have zarr write that down "
        "(zarr.consolidate_metadata) before it is uploaded"
    )


def _chunk_keys_v3(root: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return each array's chunk keys by the metadata of a root group of version 3."""
    keys = {}
    for path, node in ((root.get("consolidated_metadata") or {}).get("metadata") or {}).items():
        if node.get("node_type") == "array":
            plain = node["chunk_key_encoding"]["name"] == "default"
            separator = node["chunk_key_encoding"].get("configuration", {}).get("separator", "/" if plain else ".")
            numbers = _chunk_numbers(node["shape"], node["chunk_grid"]["configuration"]["chunk_shape"])
            keys[path] = [separator.join([*["c"] * plain, *number]) or "0" for number in numbers]
    return keys


def _chunk_keys_v2(root: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return each array's chunk keys by the consolidated metadata of a tree of version 2."""
    keys = {}
    for path, node in root.get("metadata", {}).items():
        folder, _, name = path.rpartition("/")
        if name == ".zarray":
            separator = node.get("dimension_separator", ".")
            keys[folder] = [separator.join(number) or "0" for number in _chunk_numbers(node["shape"], node["chunks"])]
    return keys


def _chunk_numbers(shape: list[int], chunks: list[int]) -> list[list[str]]:
    counts = [-(-length // size) for length, size in zip(shape, chunks, strict=True)]
    if math.prod(counts) > MOST_CHUNKS:
        raise ValueError(f"{math.prod(counts)} chunks of an array")
    return [list(map(str, number)) for number in product(*map(range, counts))]
