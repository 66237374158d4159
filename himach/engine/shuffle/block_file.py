"""Blocks in a file: `ColumnWriter` and `write_block()` write them, `FileBlock` reads them by ranges of shards.

The file of kept pairs (`himach.checkpoint.part`) is an uncompressed .npz; spilled pairs (`himach.engine.shuffle.spill`)
have its columns without the archive, whose checksums would not be read. A column is sorted by shard, so
that any range of shards is one read. Columns of Python objects are several, each with some rows as bytes.

Rows are read into buffers, not mapped: a bad sector, or a file that another process truncates, is an error, no signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol
from zipfile import ZipFile

import numpy as np
from numpy.lib.format import dtype_to_descr, magic

from himach.engine.pairs.block import Array, Block, Bounds, ColumnSpec, Form, Kind, Raw, block_kind, objects, raw
from himach.engine.shuffle.stack import MergedBlocks

#: Approximate bytes of rows joined and written at a time, and bytes counted per Python object.
PIECE_BYTES, OBJECT_BYTES = 1 << 22, 1 << 10
#: Multiple of this size up to which a single shard is still joined.
SHARD_PIECES = 4


class _Archive(ZipFile):
    """An archive that writes no directory if it is dropped."""

    def __del__(self) -> None:
        pass


class ColumnWriter:
    """Writes an .npz to a file that is empty, or to the end of one that need not have a directory."""

    def __init__(self, file: Any) -> None:  # has write(), tell(), seek() and flush()
        self._file = file
        self._archive = _Archive(file, "w")

    def add(self, name: str, column: Array) -> int:
        """Write a column; return the offset of its first row."""
        return self.add_pieces(name, column.dtype, column.shape, [column])

    def add_pieces(self, name: str, dtype: np.dtype[Any], shape: Sequence[int], pieces: Iterable[Array]) -> int:
        """Write a column that comes in pieces; return the offset of its first row."""
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            member.write(_npy_header(dtype, shape))
            start: int = self._file.tell()
            for piece in pieces:
                member.write(raw(piece))
        return start

    def finish(self, name: str, text: bytes) -> None:
        """Write a member that is no column, and the directory."""
        self._archive.writestr(name, text)
        self._archive.close()


def _npy_header(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """Return the header of a .npy file; a dtype that no header describes is that of so many bytes."""
    try:
        described: Any = dtype_to_descr(dtype)
    except ValueError:
        described = f"|V{dtype.itemsize}"
    text = ascii({"descr": described, "fortran_order": False, "shape": tuple(shape)}).encode()
    text += b" " * (-(len(text) + 13) % 64) + b"\n"
    return magic(2, 0) + len(text).to_bytes(4, "little") + text


class BlockSource(Protocol):
    """The file of a `FileBlock`."""

    def read(self, at: int, target: Raw) -> None:
        """Fill `target` from byte `at`."""

    def check(self, block: Block) -> None:
        """Raise an error if other code could not trust the rows of a block."""

    def unpack(self, data: Raw, rows: int) -> list[Any]:
        """Return the Python objects of some rows."""


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block in a file: `form`, `width` and `bounds` of the `Block`, its column types, and where its columns are."""

    source: BlockSource
    form: Form
    width: int
    bounds: Bounds
    specs: dict[str, ColumnSpec]
    starts: dict[str, int]  # offsets of columns, except those of objects
    pieces: dict[str, list[tuple[int, int]]]  # columns of objects: offset and bytes of each piece
    stops: Bounds  # the end row of each piece, exclusive
    offset: int = 0  # added to the column `at`

    @property
    def kind(self) -> Kind:
        """Kind of the `Block`."""
        return block_kind(self.form, self.width, self.specs)

    def part(self, start: int, stop: int) -> Block:
        """Read the shards from `start` to `stop`."""
        first, last = self.bounds[[start, stop]].tolist()
        columns = {name: self._rows(name, first, last) for name in self.starts}
        columns |= {name: self._objects(name, first, last) for name in self.pieces}
        block = Block(self.form, self.width, self.bounds[start : stop + 1] - first, **columns)
        self.source.check(block)
        if self.offset:
            np.add(block.at, np.uint32(self.offset), out=block.at)
        return block

    def _rows(self, name: str, first: int, last: int) -> Array:
        spec = self.specs[name]
        column = spec.empty(last - first)
        self.source.read(self.starts[name] + first * spec.nbytes, raw(column))
        return column

    def _objects(self, name: str, first: int, last: int) -> Array:
        """Return some rows of a column of objects; read all pieces that have some of them."""
        edges, parts = [0, *self.stops.tolist()], [objects([])]
        for (start, stop), (at, nbytes) in zip(pairwise(edges), self.pieces[name], strict=True):
            if start < last and stop > first:
                data = np.empty(nbytes, dtype=np.uint8)
                self.source.read(at, data)
                rows = objects(self.source.unpack(data, stop - start))
                parts.append(rows[max(first - start, 0) : last - start])
        return np.concatenate(parts)


def write_block(writer: Any, name: str, stack: MergedBlocks, source: Any) -> FileBlock:
    """Write blocks of one kind as one block, several shards at a time; `source` packs objects."""
    bounds: Bounds = stack.bounds.sum(axis=0)
    row = sum(OBJECT_BYTES if spec.dtype.hasobject else spec.nbytes for spec in stack.specs.values())
    starts: dict[str, int] = {}
    pieces: dict[str, list[tuple[int, int]]] = {}
    counts: list[int] = []
    for column, spec in stack.specs.items():
        rows = _pieces(stack, column, bounds, max(1, PIECE_BYTES // row))
        if not spec.dtype.hasobject:
            shape = (int(bounds[-1]), *spec.shape)
            starts[column] = writer.add_pieces(f"{name}.{column}", spec.dtype, shape, rows)
            continue
        pieces[column], counts = [], []
        for number, piece in enumerate(rows):
            data = np.frombuffer(source.pack(piece.tolist()), dtype=np.uint8)
            pieces[column].append((writer.add(f"{name}.{column}.{number}", data), len(data)))
            counts.append(len(piece))
    stops = np.cumsum(np.array(counts, dtype=np.int64))
    first = stack.blocks[0]
    return FileBlock(source, first.form, first.width, bounds, stack.specs, starts, pieces, stops)


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
