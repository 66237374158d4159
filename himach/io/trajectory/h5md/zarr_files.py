"""The files of a Zarr directory, as they lie there: `is_zarr()`, and `ZarrFiles`, which tells metadata from chunks.

It needs no zarr: what a dataset is called by and compared with is told where zarr is not installed, too.
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
from himach.io.remote.byte_file import close_mirrors, local_path, read_status
from himach.io.remote.errors import RemoteError
from himach.io.remote.url import is_url

_NODES = (".zarray", "zarr.json")  # what says what an array is, in the second and the third version of the format
_METADATA = frozenset({*_NODES, ".zgroup", ".zattrs", ".zmetadata"})
_ROOTS = ("zarr.json", ".zgroup", ".zmetadata")
SUFFIXES = (".zarr", ".zarrmd")
#: Files of an array whose names are made up, at most.
MOST_CHUNKS = 10**7
#: Arrays of which no chunk may be missing. Of others, zarr writes no chunk that is all zeros.
WHOLE = ("position/value", "edges/value")


def is_zarr(path: str) -> bool:
    """Tell a directory of Zarr from others, by what is in it, or by its suffix; by URL, by this alone."""
    if path.rstrip("/").endswith(SUFFIXES):
        return is_url(path) or os.path.isdir(path)
    return os.path.isdir(path) and any(os.path.exists(os.path.join(path, name)) for name in _ROOTS)


@dataclass(frozen=True)
class ZarrFiles:
    """Files below a directory of Zarr."""

    metadata: tuple[str, ...]  # what says which arrays there are: paths, sorted
    chunks: dict[str, list[str]]

    @classmethod
    def from_path(cls, path: str) -> ZarrFiles:
        """List them, or by URL what the metadata mean; raises OSError, and TrajectoryError where these tell nothing."""
        if is_url(path):
            return _files_from_metadata(path)
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
    def stamps(self) -> tuple[str, ...]:
        """The metadata, and the first and the last chunk of each array; by URL, of those that have all."""
        complete = [files for array, files in self.chunks.items() if not is_url(array) or array.endswith(WHOLE)]
        return (*self.metadata, *dict.fromkeys(files[end] for files in complete for end in (0, -1)))

    def sample_files(self, limit: int) -> list[str]:
        """Return the metadata, and all other files, or where there are more than `limit`, as many all over them."""
        files = [file for chunks in self.chunks.values() for file in chunks]
        count = len(files)
        return [*self.metadata, *(files if count <= limit else (files[i * count // limit] for i in range(limit)))]


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d+", name)], name


def _raise(error: OSError) -> None:
    raise error


def _files_from_metadata(url: str) -> ZarrFiles:
    """Return the files that there are below a URL if no chunk is missing."""
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
    """Return the keys of the chunks of each array, by the metadata of a root group of the third version."""
    keys = {}
    for path, node in ((root.get("consolidated_metadata") or {}).get("metadata") or {}).items():
        if node.get("node_type") == "array":
            plain = node["chunk_key_encoding"]["name"] == "default"
            separator = node["chunk_key_encoding"].get("configuration", {}).get("separator", "/" if plain else ".")
            numbers = _chunk_numbers(node["shape"], node["chunk_grid"]["configuration"]["chunk_shape"])
            keys[path] = [separator.join([*["c"] * plain, *number]) or "0" for number in numbers]
    return keys


def _chunk_keys_v2(root: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the same by what is written down of a tree of the second version."""
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
