"""Columns in a file, each with a checksum: `ColumnWriter` and `ColumnFile`.

A file has a head of 64 bytes, columns aligned to 64 bytes, and their description in JSON, with optional extra fields.
Head, description and every column (with its zero padding) have a CRC-32C, so that every byte is covered. A column's
offset follows from the sizes of those before it: no offset in the file can be wrong, and nothing is allocated before
these sizes match the file size.
"""

from __future__ import annotations

import ast
import json
import math
import os
import resource
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from himach.engine.pairs.block import Array, Raw, raw
from himach.errors import HimachError
from himach.files import write_all
from himach.io.store.bodhi import crc32c

MAGIC = b"himpairs"
#: Version of the format.
VERSION = 1
#: Alignment of columns in bytes.
ALIGN = 64
# Magic, version, CRC of the description, bytes of the file, offset of the description; the head's own CRC follows.
HEAD = struct.Struct("<8sIIQQ28x")
HEAD_BYTES = HEAD.size + 4
#: Bytes written, or read, and checked at a time: they fit in a core's private cache.
PIECE = 1 << 20
#: Inverse fraction of a process's open-file limit for files that stay open; others are reopened for each read.
OPEN = 4
#: Most bytes of a description.
DESCRIBED = 1 << 24

#: Prefix of the dtype of numpy records, whose fields are attributes.
RECORD = "record"
#: Most dimensions of a numpy array.
DIMENSIONS = 64

#: Errors from parsing a malformed description.
PARSE_ERRORS = (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError, AttributeError, SyntaxError)


class BadPartError(HimachError):
    """A file of kept pairs that cannot be used: damaged, of another version, or of another map."""


class DamagedPartError(BadPartError):
    """A file of kept pairs whose content is lost for good."""


@lru_cache(maxsize=256)
def describe(dtype: np.dtype[Any]) -> str | None:
    """Return a dtype as in numpy.save() files, after `RECORD` for records; None if that does not restore it."""
    try:
        described: Any = dtype_to_descr(dtype)
        text = described if isinstance(described, str) else repr(described)
        if dtype.type is np.record:
            text = RECORD + text
        again = as_dtype(text)
        return text if again == dtype and _types(again) == _types(dtype) else None
    except PARSE_ERRORS:
        return None


def as_dtype(described: Any) -> np.dtype[Any]:
    """Return the dtype from `describe()`; other input raises one of `PARSE_ERRORS` or gives another dtype."""
    text = described.removeprefix(RECORD)
    try:
        dtype = descr_to_dtype(ast.literal_eval(text) if text.startswith("[") else text)
    except MemoryError:  # from lists nested too deeply
        raise ValueError("a type makes no sense") from None
    if dtype.hasobject or dtype.itemsize > 1 << 31 or dtype.subdtype is not None:
        raise ValueError(f"values of {dtype} are not kept as columns")
    return np.dtype((np.record, dtype)) if text != described and dtype.names else dtype


def _types(dtype: np.dtype[Any]) -> list[Any]:
    """Return the value types of a dtype and its fields, in which equal dtypes may differ."""
    fields = [] if dtype.names is None else [dtype[name].base for name in dtype.names]
    return [dtype.type, *map(_types, fields)]


def _count(number: Any) -> int:
    """Return a number if it is a valid count of rows or bytes; else raise ValueError."""
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError(f"{str(number)[:80]} is no count")
    return number


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


class WrittenColumn:
    """A column that is written piece by piece."""

    def __init__(self, file: int, start: int, nbytes: int) -> None:
        self._file = file
        self._at = start
        self._padding = _padded(nbytes) - nbytes
        self._left = nbytes
        self._crc = 0

    def append(self, rows: Array) -> None:
        """Append rows."""
        data = raw(rows)
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._crc = crc32c(piece.data, self._crc)
            write_all(self._file, piece, self._at)
            self._at += len(piece)
        self._left -= len(data)

    def crc(self) -> int:
        """Return the checksum of all rows and of the zero padding, which is a hole in the file."""
        if self._left:
            raise ValueError(f"a column of kept pairs lacks {self._left} bytes")
        return crc32c(bytes(self._padding), self._crc)


class ColumnWriter:
    """Writes columns to an empty file with the descriptor `file`."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._end = HEAD_BYTES
        self._described: list[tuple[Any, list[int], WrittenColumn]] = []

    def reserve(self, dtype: Any, shape: Sequence[int]) -> tuple[int, WrittenColumn]:
        """Return the number of a new column and its writer; `dtype` is as returned by `describe()`."""
        nbytes = as_dtype(dtype).itemsize * math.prod(shape)
        column = WrittenColumn(self._file, self._end, nbytes)
        self._end += _padded(nbytes)
        self._described.append((dtype, list(shape), column))
        return len(self._described) - 1, column

    def add(self, column: Array) -> int:
        """Write a whole column of numbers; return its number."""
        number, written = self.reserve(describe(column.dtype), column.shape)
        written.append(column)
        return number

    def finish(self, description: dict[str, Any]) -> None:
        """Write the description and the head."""
        columns = [[dtype, shape, column.crc()] for dtype, shape, column in self._described]
        text = json.dumps({**description, "columns": columns}, separators=(",", ":")).encode()
        if len(text) > DESCRIBED:
            raise ValueError(f"{len(columns)} columns of kept pairs are too many for one file")
        write_all(self._file, text, self._end)
        head = HEAD.pack(MAGIC, VERSION, crc32c(text), self._end + len(text), self._end)
        write_all(self._file, head + struct.pack("<I", crc32c(head)), 0)


@dataclass(frozen=True, slots=True)
class _Column:
    start: int
    nbytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc: int


class ColumnFile:
    """A file of columns, open for reading; `description` is that of `finish()`, `nbytes` the file's size.

    Opening does not check the columns: see `verify()`.
    """

    _open = 0  # open files of this process

    def __init__(self, path: Path) -> None:
        self.path = path
        self._memory: Raw | None = None
        self._file = -1
        self.status: os.stat_result | None = None
        self.status = self._reopen()
        if not stat.S_ISREG(self.status.st_mode):
            raise self.bad("it is no file")
        self.nbytes = self.status.st_size
        end, crc = self._head()
        text = self._read(end, self.nbytes - end)
        if crc32c(text.data) != crc:
            raise self.damaged("its description is damaged")
        try:
            self.description: dict[str, Any] = json.loads(bytes(text))
            self._columns = self._place_columns(end)
        except PARSE_ERRORS as error:
            raise self.bad(f"its description makes no sense: {error}") from error

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; columns in memory stay, reading others reopens it."""
        file, self._file = self._file, -1
        if file >= 0:
            ColumnFile._open -= 1
            os.close(file)

    def _reopen(self) -> os.stat_result:
        """Open the file and check that it is unchanged; return its status."""
        try:
            # O_NONBLOCK: a pipe of that name would block.
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            ColumnFile._open += 1
            status = os.fstat(self._file)
        except OSError as error:
            raise self.bad(f"it cannot be opened: {error.strerror}") from error
        if self.status is not None and _state(status) != _state(self.status):
            raise self.bad("it is another file than it was when it was checked")
        return status

    def bad(self, reason: str) -> BadPartError:
        """Return the error for an unusable file."""
        return BadPartError(f"{self.path.name}: {reason}")

    def damaged(self, reason: str) -> DamagedPartError:
        """Return the error for a damaged file."""
        return DamagedPartError(f"{self.path.name}: {reason}")

    def _head(self) -> tuple[int, int]:
        """Return the offset and the checksum of the description."""
        if self.nbytes < HEAD_BYTES:
            raise self.damaged("it is torn: it ends within its head")
        head = bytes(self._read(0, HEAD_BYTES))
        magic, version, crc, nbytes, end = HEAD.unpack_from(head)
        if magic != MAGIC:
            raise self.damaged("it is no file of kept pairs")
        if version != VERSION:
            raise self.bad(f"it has the format {version} of kept pairs, this himach has {VERSION}")
        if struct.pack("<I", crc32c(head[: HEAD.size])) != head[HEAD.size :]:
            raise self.damaged("its head is damaged")
        if nbytes != self.nbytes:
            raise self.damaged(f"it is torn: it has {self.nbytes} bytes of {nbytes}")
        if not HEAD_BYTES <= end <= nbytes <= end + DESCRIBED:
            raise self.bad("its head makes no sense")
        return end, crc

    def _place_columns(self, end: int) -> list[_Column]:
        columns, start = [], HEAD_BYTES
        for described, lengths, crc in self.description["columns"]:
            dtype, shape = as_dtype(described), tuple([_count(length) for length in lengths])
            nbytes = dtype.itemsize * math.prod(shape)
            if len(shape) > DIMENSIONS or math.prod(max(1, n) for n in (*shape, dtype.itemsize)) >= 1 << 62:
                raise ValueError("a column has a shape that no array has")
            columns.append(_Column(start, nbytes, dtype, shape, _count(crc)))
            start += _padded(nbytes)
            if start > end:
                raise ValueError("columns are larger than the file")
        if start != end:
            raise ValueError("columns do not fill the file")
        return columns

    def verify(self, load: bool) -> None:
        """Read and check all columns; with `load`, keep them in memory, else they are read again on demand."""
        end = self._columns[-1].start + _padded(self._columns[-1].nbytes) if self._columns else HEAD_BYTES
        memory = np.empty(end if load else 0, dtype=np.uint8)
        spare = np.empty(0 if load else PIECE, dtype=np.uint8)
        for number, column in enumerate(self._columns):
            crc, stop = 0, column.start + _padded(column.nbytes)
            for at in range(column.start, stop, PIECE):
                size = min(PIECE, stop - at)
                piece = memory[at : at + size] if load else spare[:size]
                self._fill(at, piece)
                crc = crc32c(piece.data, crc)
            self._check(number, crc)
        if load:
            self._memory = memory

    def rest(self) -> None:
        """Close the file if its columns are in memory or too many are open; an open one outlives its deletion."""
        if self.in_memory or ColumnFile._open * OPEN > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            self.close()

    def verified(self, number: int) -> Array:
        """Read one column and check it."""
        column = self._columns[number]
        data = self._read(column.start, _padded(column.nbytes))
        self._check(number, crc32c(data.data))
        return self._reshape(column, data[: column.nbytes], column.shape)

    def _check(self, number: int, crc: int) -> None:
        if crc != self._columns[number].crc:
            raise self.damaged(f"its column {number} is damaged")

    @property
    def in_memory(self) -> bool:
        """Whether columns are in memory."""
        return self._memory is not None

    def spec(self, number: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return dtype and shape of a column."""
        column = self._columns[self._checked_number(number)]
        return column.dtype, column.shape

    def column(self, number: Any, dtype: Any, *shape: int) -> Array:
        """Return a whole column; raise ValueError if its dtype or shape (-1: any) differs."""
        column = self._columns[self._checked_number(number)]
        fits = len(shape) == len(column.shape) and all(a in (-1, b) for a, b in zip(shape, column.shape, strict=True))
        if column.dtype != np.dtype(dtype) or not fits:
            raise ValueError(f"column {number} is {column.dtype} {column.shape}")
        return self.rows(number, 0, column.shape[0])

    def rows(self, number: int, first: int, last: int) -> Array:
        """Return some rows of a column."""
        column = self._columns[number]
        size = column.dtype.itemsize * math.prod(column.shape[1:])
        start, nbytes = column.start + first * size, (last - first) * size
        data = self._read(start, nbytes) if self._memory is None else self._memory[start : start + nbytes]
        return self._reshape(column, data, (last - first, *column.shape[1:]))

    def _checked_number(self, number: Any) -> int:
        if _count(number) >= len(self._columns):
            raise ValueError(f"there is no column {number}")
        return int(number)

    def _reshape(self, column: _Column, data: Raw, shape: tuple[int, ...]) -> Array:
        if not len(data):
            return np.empty(shape, dtype=column.dtype)
        shaped: Array = data.view(column.dtype).reshape(shape)
        return shaped

    def _read(self, at: int, nbytes: int) -> Raw:
        data = np.empty(nbytes, dtype=np.uint8)
        self._fill(at, data)
        return data

    def _fill(self, at: int, target: Raw) -> None:
        if self._file < 0:
            self._reopen()
            try:
                self._fill(at, target)
            finally:
                self.close()
            return
        view = memoryview(target)
        while view:
            try:
                count = os.preadv(self._file, [view], at)
            except OSError as error:
                raise self.bad(f"it cannot be read: {error.strerror}") from error
            if count == 0:
                raise self.damaged("it is torn: it became shorter")
            view = view[count:]
            at += count
