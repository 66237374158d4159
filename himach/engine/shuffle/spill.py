"""Blocks on disk: `Scratch` is a rank's file for pairs that exceed its memory; `FileBlock` reads a block of it.

The file has no name and mode 0600: nobody else can read or change it, and nothing remains however the process ends. So
its objects may be pickles. A column is sorted by shard, so that any range of shards is one read; a column of Python
objects is several, each with some rows as a pickle.
"""

import errno
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np

from himach.engine.pairs.block import Array, Block, Bounds, ColumnSpec, Form, Raw, objects, raw
from himach.engine.pairs.values import dumps
from himach.engine.shuffle.stack import MergedBlocks
from himach.errors import HimachError

#: Approximate bytes of rows joined and written at a time, and bytes counted per Python object.
PIECE_BYTES, OBJECT_BYTES = 1 << 22, 1 << 10
#: Multiple of this size up to which a single shard is still joined.
SHARD_PIECES = 4


class SpillError(HimachError):
    """Pairs could not be written to disk or read back."""


class Scratch:
    """An unnamed file in a directory on a local disk of this node; the directory is created if it is missing."""

    def __init__(self, directory: Path, content: str = "pairs") -> None:
        self.directory, self.content = directory, content
        self.size = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - open until close()
        except OSError as error:
            self._fail("cannot be written there", error)

    def append(self, data: bytes | Raw) -> int:
        """Append `data`; return its offset."""
        start, rest = self.size, memoryview(data)
        try:
            while rest:
                count = os.pwrite(self._file.fileno(), rest, self.size)
                self.size, rest = self.size + count, rest[count:]
        except OSError as error:
            self._fail("cannot be written", error)
        return start

    def map(self, nbytes: int) -> Raw:
        """Return so many bytes of the file, mapped for reading and writing; they outlast `close`."""
        try:
            os.posix_fallocate(self._file.fileno(), 0, nbytes)  # else a full disk would kill the process
            return np.memmap(self._file, np.uint8, "r+", shape=(nbytes,))
        except OSError as error:
            self._fail("cannot be written", error)

    def spill(self, stack: MergedBlocks) -> "FileBlock":
        """Write blocks of one kind as one block, several shards at a time."""
        bounds: Bounds = stack.bounds.sum(axis=0)
        row = sum(OBJECT_BYTES if spec.dtype.hasobject else spec.nbytes for spec in stack.specs.values())
        starts: dict[str, int] = {}
        pieces: dict[str, list[tuple[int, int]]] = {}
        counts: list[int] = []
        for column, spec in stack.specs.items():
            rows = _pieces(stack, column, bounds, max(1, PIECE_BYTES // row))
            if not spec.dtype.hasobject:
                starts[column] = self.size
                for piece in rows:
                    self.append(raw(piece))
                continue
            pieces[column], counts = [], []
            for piece in rows:
                data = dumps(piece.tolist())
                pieces[column].append((self.append(data), len(data)))
                counts.append(len(piece))
        first = stack.blocks[0]
        return FileBlock(self, first.form, first.width, bounds, stack.specs, starts, pieces, [0, *np.cumsum(counts)])

    def read(self, at: int, target: Raw) -> None:
        """Fill `target` from byte `at`."""
        rest = memoryview(target)
        try:
            while rest:
                count = os.preadv(self._file.fileno(), [rest], at)
                if not count:
                    raise OSError(errno.EIO, "the file ends early")
                at, rest = at + count, rest[count:]
        except OSError as error:
            self._fail("cannot be read back", error)

    def close(self) -> None:
        """Close the file, which frees its space."""
        with suppress(OSError):  # of what was not written for want of space
            self._file.close()

    def _fail(self, what: str, error: OSError) -> NoReturn:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SpillError(
            f"{self.content} that do not fit into memory {what}, in {self.directory}: {error.strerror or error}; "
            + ("free space there, " if full else "")
            + "name a directory on a larger local disk by TMPDIR"
            + ", or let himach use more memory (`memory`)" * (self.content == "pairs")
        ) from error


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block in a file: `form`, `width` and `bounds` of the `Block`, its column types, and where its columns are."""

    file: Scratch
    form: Form
    width: int
    bounds: Bounds
    specs: dict[str, ColumnSpec]
    starts: dict[str, int]  # offsets of columns, except those of objects
    pieces: dict[str, list[tuple[int, int]]]  # columns of objects: offset and bytes of each piece
    edges: list[int]  # the rows at which pieces begin, and the end

    def part(self, start: int, stop: int) -> Block:
        """Read the shards from `start` to `stop`."""
        first, last = self.bounds[[start, stop]].tolist()
        columns = {name: self._rows(name, first, last) for name in self.starts}
        columns |= {name: self._objects(name, first, last) for name in self.pieces}
        return Block(self.form, self.width, self.bounds[start : stop + 1] - first, **columns)

    def _rows(self, name: str, first: int, last: int) -> Array:
        spec = self.specs[name]
        column = spec.empty(last - first)
        self.file.read(self.starts[name] + first * spec.nbytes, raw(column))
        return column

    def _objects(self, name: str, first: int, last: int) -> Array:
        """Return some rows of a column of objects; read all pieces that have some of them."""
        parts = [objects([])]
        for (start, stop), (at, nbytes) in zip(pairwise(self.edges), self.pieces[name], strict=True):
            if start < last and stop > first:
                data = np.empty(nbytes, dtype=np.uint8)
                self.file.read(at, data)
                parts.append(objects(pickle.loads(data))[max(first - start, 0) : last - start])
        return np.concatenate(parts)


def _pieces(stack: MergedBlocks, name: str, bounds: Bounds, most: int) -> Iterator[Array]:
    """Yield the rows of a column: about `most` at a time, or a shard; a far larger shard block by block."""
    start = 0
    while bounds[start] < bounds[-1]:
        stop = max(start + 1, int(np.searchsorted(bounds, bounds[start] + most, side="right")) - 1)
        rows = bounds[stop] - bounds[start]
        if rows > SHARD_PIECES * most:
            yield from (rows for rows in stack.column_by_block(name, start, stop) if len(rows))
        elif rows:
            yield stack.column(name, start, stop)
        start = stop
