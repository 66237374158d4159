"""Blocks on disk: `Scratch` is a rank's file for pairs that exceed its memory, `Spilled` a block in it.

The file is unlinked right after it is opened, in a separate directory of mode 0700: nobody else can read or change it,
and nothing remains however the process ends. Its content is sorted by shard, column by column, so that any range of
shards is one read per column.
"""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from himach.engine.pairs.block import Array, Block, Bounds, ColumnSpec, Form, Kind, Raw, block_kind, objects, raw
from himach.engine.pairs.values import dumps
from himach.engine.shuffle.stack import MergedBlocks
from himach.errors import HimachError

#: Approximate bytes sorted and written at a time.
PIECE_BYTES = 1 << 22


class SpillError(HimachError):
    """Pairs could not be written to disk or read back."""


class Scratch:
    """An unnamed file in a directory on a local disk of this node; the directory is created if it is missing."""

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
        """Append `data`; return its offset."""
        start = self.size
        self.write(start, data)
        return start

    def write(self, at: int, data: Raw | bytes) -> None:
        """Write `data` at byte `at`."""
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
        """Reserve bytes at the end; return their offset."""
        start = self.size
        self.size += nbytes
        return start

    def read(self, at: int, target: Raw) -> None:
        """Fill `target` from byte `at`."""
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
            + "name a directory on a larger local disk by TMPDIR, or let himach use more memory (`memory`)"
        ) from error


@dataclass(frozen=True, slots=True)
class Spilled:
    """A block in a scratch file: `form`, `width` and `bounds` of the `Block`, and its column types."""

    form: Form
    width: int
    bounds: Bounds
    specs: dict[str, ColumnSpec]
    _scratch: Scratch
    _starts: dict[str, int]  # offsets of columns, except those of objects
    _pickles: Bounds  # offsets of the objects of each shard

    @property
    def kind(self) -> Kind:
        """Kind of the `Block`."""
        return block_kind(self.form, self.width, self.specs)

    def part(self, start: int, stop: int) -> Block:
        """Read the shards from `start` to `stop`."""
        first, last = self.bounds[[start, stop]].tolist()
        columns = {name: self._column(name, first, last) for name in self._starts}
        columns |= {name: objects(listed) for name, listed in self._objects(start, stop).items()}
        return Block(self.form, self.width, self.bounds[start : stop + 1] - first, **columns)

    def _column(self, name: str, first: int, last: int) -> Array:
        spec = self.specs[name]
        column = spec.empty(last - first)
        if column.nbytes:
            self._scratch.read(self._starts[name] + first * spec.nbytes, raw(column))
        return column

    def _objects(self, start: int, stop: int) -> dict[str, list[Any]]:
        """Return the columns of objects as lists."""
        edges = self._pickles[start : stop + 1].tolist()
        first, last = edges[0], edges[-1]
        data = np.empty(last - first, dtype=np.uint8)
        self._scratch.read(first, data)
        listed: dict[str, list[Any]] = {name: [] for name in self.specs if name not in self._starts}
        for place, end in pairwise(edges):
            if end > place:
                for name, values in pickle.loads(data[place - first : end - first]).items():
                    listed[name] += values
        return listed


def spill(scratch: Scratch, stack: MergedBlocks) -> Spilled:
    """Write blocks to a scratch file as one block, about `PIECE_BYTES` bytes at a time."""
    bounds: Bounds = stack.bounds.sum(axis=0)
    shards, first = len(bounds) - 1, stack.blocks[0]
    nbytes = int(bounds[-1]) * sum(spec.nbytes for spec in stack.specs.values())
    step = max(1, shards * PIECE_BYTES // max(1, nbytes))
    starts = {
        name: scratch.reserve(int(bounds[-1]) * spec.nbytes)
        for name, spec in stack.specs.items()
        if not spec.dtype.hasobject
    }
    if len(starts) < len(stack.specs):
        step = 1  # objects are pickled shard by shard
    pickles = np.full(shards + 1, scratch.size, np.int64)
    for start in range(0, shards, step):
        part = stack.part(start, min(start + step, shards))
        if not len(part):
            continue
        columns = part.columns()
        for name, place in starts.items():
            scratch.write(place + int(bounds[start]) * stack.specs[name].nbytes, raw(columns.pop(name)))
        if columns:
            scratch.append(dumps({name: column.tolist() for name, column in columns.items()}))
            pickles[start + 1 :] = scratch.size
    return Spilled(first.form, first.width, bounds, stack.specs, scratch, starts, pickles)
