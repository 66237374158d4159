"""Blocks on disk: `Scratch` is the file to which a rank's pairs go when memory is used up, `Spilled` a block in it.

The file has no name: it is unlinked as soon as it is open, in a directory of mode 0700 of its own, so that nobody else
can read or change it and nothing is left of it however the process ends. What it holds is ordered by shard, column by
column, so that any range of shards is one read a column.
"""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Block, Bounds, Kind, Raw, raw, row_bytes
from himach.engine.pairs.keys import ENCODED
from himach.errors import HimachError

__all__ = ["Scratch", "SpillError", "Spilled", "spill"]


class SpillError(HimachError):
    """Pairs could not be written to the disk, or not read back."""


class Scratch:
    """A file without a name in a directory.

    Parameters
    ----------
    directory
        On a local disk of this node; it is made if it is not there.

    Raises
    ------
    SpillError
        If no file can be made there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.size = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            own = tempfile.mkdtemp(prefix="himach-pairs-", dir=directory)
            try:
                self._file = tempfile.TemporaryFile(dir=own, buffering=0)  # noqa: SIM115 - open until close()
            finally:
                os.rmdir(own)
        except OSError as error:
            self._fail("cannot be written there", error)

    def append(self, data: Raw | bytes) -> int:
        """Write `data` behind all that is there; return where it begins."""
        start = self.size
        self.write(start, data)
        return start

    def write(self, at: int, data: Raw | bytes) -> None:
        """Write `data` from byte `at` on."""
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(self._file.fileno(), view, at)
            except OSError as error:
                self._fail("cannot be written", error)
            view = view[written:]
            at += written
        self.size = max(self.size, at)

    def reserve(self, nbytes: int) -> int:
        """Set bytes aside behind all that is there; return where they begin."""
        start = self.size
        self.size += nbytes
        return start

    def read(self, at: int, target: Raw) -> None:
        """Fill `target` with what was written from byte `at` on."""
        view = memoryview(target)
        while view:
            try:
                count = os.preadv(self._file.fileno(), [view], at)
            except OSError as error:
                self._fail("cannot be read back", error)
            if count == 0:
                self._fail("cannot be read back", OSError(errno.EIO, "the file ends early"))
            view = view[count:]
            at += count

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._file.close()

    def _fail(self, what: str, error: OSError) -> NoReturn:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SpillError(
            f"pairs that do not fit into memory {what}, in {self.directory}: {error.strerror or error}; "
            + ("free space there, " if full else "")
            + "name a directory on a larger local disk by TMPDIR, or let himach use more memory (--memory)"
        ) from error


@dataclass(frozen=True, slots=True)
class Spilled:
    """A block in a scratch file.

    Attributes
    ----------
    kind
        See `Block.kind`.
    bounds, name_bounds
        See `Block`.
    """

    kind: Kind
    bounds: Bounds
    name_bounds: Bounds
    _scratch: Scratch
    # Where the columns begin.
    _keys: int
    _at: int
    _order: int | None
    _values: int
    _pickles: Bounds  # of each shard: encoded keys and objects

    def part(self, start: int, stop: int) -> Block:
        """Read the shards from `start` to `stop`."""
        width, form, dtype, shape = self.kind
        first, last = int(self.bounds[start]), int(self.bounds[stop])
        keys = self._column(self._keys, np.int64, (width,) if width > 0 else (), first, last)
        names, objects = self._objects(start, stop)
        if width == ENCODED:
            keys -= self.name_bounds[start]
        values: Any = None
        if dtype is not None and dtype.hasobject:
            values = np.fromiter(objects, dtype=object, count=last - first)
        elif dtype is not None:
            values = self._column(self._values, dtype, shape, first, last)
        return Block(
            form=form,
            width=width,
            keys=keys,
            at=self._column(self._at, np.uint32, (), first, last),
            order=None if self._order is None else self._column(self._order, np.uint32, (), first, last),
            values=values,
            bounds=self.bounds[start : stop + 1] - first,
            names=names if width == ENCODED else None,
            name_bounds=self.name_bounds[start : stop + 1] - self.name_bounds[start] if width == ENCODED else None,
        )

    def _column(
        self, place: int, dtype: npt.DTypeLike, shape: tuple[int, ...], first: int, last: int
    ) -> npt.NDArray[Any]:
        column = np.empty((last - first, *shape), dtype=dtype)
        if column.nbytes:
            self._scratch.read(place + first * row_bytes(column), raw(column))
        return column

    def _objects(self, start: int, stop: int) -> tuple[list[bytes], list[Any]]:
        data = np.empty(int(self._pickles[stop] - self._pickles[start]), dtype=np.uint8)
        self._scratch.read(int(self._pickles[start]), data)
        ends = (self._pickles[start : stop + 1] - self._pickles[start]).tolist()
        names: list[bytes] = []
        objects: list[Any] = []
        for place, end in pairwise(ends):
            if end > place:
                shard_names, shard_objects = pickle.loads(data[place:end])
                names += shard_names
                objects += shard_objects
        return names, objects


def spill(scratch: Scratch, kind: Kind, ordered: bool, bounds: Bounds, parts: Iterator[tuple[int, Block]]) -> Spilled:
    """Write a block to a scratch file.

    Parameters
    ----------
    scratch
        The file.
    kind, bounds
        Of the block.
    ordered
        Whether it has `Block.order`.
    parts
        Its shards in order, some at a time, each with the number of the first; one at a time where values are objects
        or keys are encoded.

    Raises
    ------
    SpillError
        If the disk does not take it.
    """
    width, _, dtype, shape = kind
    n, shards = int(bounds[-1]), len(bounds) - 1
    objects = dtype is not None and dtype.hasobject
    key_bytes = 8 * max(width, 1)
    value_bytes = 0 if dtype is None or objects else dtype.itemsize * int(np.prod(shape))
    keys, at = scratch.reserve(n * key_bytes), scratch.reserve(4 * n)
    order = scratch.reserve(4 * n) if ordered else None
    values = scratch.reserve(n * value_bytes)
    name_bounds = np.zeros(shards + 1, np.int64)
    pickles = np.full(shards + 1, scratch.size, np.int64)
    for start, block in parts:
        row = int(bounds[start])
        scratch.write(keys + row * key_bytes, raw(block.keys + name_bounds[start] if width == ENCODED else block.keys))
        scratch.write(at + 4 * row, raw(block.at))
        if order is not None and block.order is not None:
            scratch.write(order + 4 * row, raw(block.order))
        if value_bytes and block.values is not None:
            scratch.write(values + row * value_bytes, raw(block.values))
        if objects or width == ENCODED:
            listed = [] if block.values is None or not objects else block.values.tolist()
            scratch.append(pickle.dumps((block.names or [], listed), protocol=5))
            pickles[start + 1 :] = scratch.size
            name_bounds[start + 1 :] += len(block.names or ())
    return Spilled(kind, bounds, name_bounds, scratch, keys, at, order, values, pickles)
