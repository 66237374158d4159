"""A part: one file of kept pairs. `write_part()`, `open_part()`, `Part`; `read_summary()` for listings.

An uncompressed .npz of a block of each kind, the table of frames, and the numbers of all covered frames. It is named
when complete and never changes; a power cut may tear it, which the checksums of the .npz detect.
"""

from __future__ import annotations

import json
import math
import os
import resource
import secrets
import stat
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import crc32

import numpy as np
from numpy.lib.format import read_array_header_2_0, read_magic
from pyroaring import BitMap64

from himach.checkpoint.chosen_frames import choose_rows
from himach.checkpoint.objects import PARSE_ERRORS, NotPlainError, Packer, describe, unpack
from himach.engine.pairs.block import SHARDS, Array, Block, Bounds, ColumnSpec, Form, Kind, Raw, raw
from himach.engine.pairs.keys import ENCODED, ROWS
from himach.engine.shuffle.block_file import ColumnWriter, FileBlock, write_block
from himach.engine.shuffle.stack import MergedBlocks
from himach.engine.stamps import FrameTable
from himach.errors import HimachError
from himach.files import whole_file

#: Suffix of parts.
SUFFIX = ".pairs"
#: The member with the description, a JSON object, and its most bytes.
DESCRIPTION, DESCRIBED = "part.json", 1 << 24
#: Most bytes of a column's header.
HEADER = 1 << 20
#: Bytes read and checked at a time.
PIECE = 1 << 20
#: Inverse fraction of a process's open-file limit for files that stay open; others are reopened for each read.
OPEN = 4
#: The bound of frame numbers, and most dimensions of a column.
LAST, DIMENSIONS = 1 << 48, 64


class BadPartError(HimachError):
    """A file of kept pairs that cannot be used: damaged, of another version, or of another map."""


class DamagedPartError(BadPartError):
    """A file of kept pairs whose content is lost for good."""


class _Column(NamedTuple):
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class ColumnFile:
    """An .npz, open for reading, with its description; the members in `verify` are checked (None: all)."""

    def __init__(self, path: Path, verify: Collection[str] | None = None) -> None:
        self.path = path
        self.trusted = False
        self.frames = 0
        self.description: dict[str, Any] = {}
        self._columns: dict[str, _Column] = {}
        self._state: tuple[int, ...] | None = None
        self._file = -1
        self._file = self._open()
        try:
            with open(self._file, "rb", closefd=False) as stream, ZipFile(stream) as archive:
                for info in archive.infolist():
                    self._scan(archive, info, verify is None or info.filename in verify)
        except BadPartError:
            raise
        except (OSError, MemoryError) as error:
            raise self.bad(f"it cannot be read: {error}") from error
        except Exception as error:  # zipfile and numpy raise errors of many kinds
            raise self.damaged(f"it is torn or damaged: {error}") from error
        if self._file * OPEN > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; reading reopens it."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def bad(self, reason: str) -> BadPartError:
        """Return the error for an unusable file."""
        return BadPartError(f"{self.path.name}: {reason}")

    def damaged(self, reason: str) -> DamagedPartError:
        """Return the error for a damaged file."""
        return DamagedPartError(f"{self.path.name}: {reason}")

    def _open(self) -> int:
        """Open the file and check that it is unchanged; return its descriptor."""
        try:
            # O_NONBLOCK: a pipe of that name would block.
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self.bad(f"it cannot be opened: {error.strerror}") from error
        status = os.fstat(file)
        state = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if not stat.S_ISREG(status.st_mode) or self._state not in (None, state):
            os.close(file)
            raise self.bad("it is another file than it was when it was checked" if self._state else "it is no file")
        self._state, self.nbytes = state, status.st_size
        return file

    def _scan(self, archive: ZipFile, info: ZipInfo, verify: bool) -> None:
        """Note where a member is, after a check of its header; with `verify`, check its content, too."""
        with archive.open(info) as member:
            if info.filename == DESCRIPTION:
                if info.file_size > DESCRIBED:
                    raise ValueError(f"a description has {info.file_size:,} bytes")
                self.description = json.loads(member.read())
                return
            if read_magic(member) != (2, 0):
                raise ValueError("a column is of another version")
            shape, fortran, dtype = read_array_header_2_0(member, HEADER)
            header = member.tell()
        local = np.empty(30, dtype=np.uint8)  # whose name and extra field may have other lengths than in the directory
        self.read(info.header_offset, local)
        start = info.header_offset + len(local) + sum(struct.unpack_from("<HH", local, 26))
        right = info.compress_type == ZIP_STORED and not fortran and not dtype.hasobject
        right &= 0 < len(shape) <= DIMENSIONS and min(shape, default=0) >= 0
        right &= math.prod(max(1, n) for n in (*shape, dtype.itemsize)) < 1 << 62
        if not right or info.file_size != header + dtype.itemsize * math.prod(shape):
            raise ValueError(f"{info.filename} has a type, or a shape, that no column has")
        if start + info.file_size > self.nbytes:
            raise ValueError("it ends early")
        self._columns[info.filename.removesuffix(".npy")] = _Column(start + header, dtype, shape)
        crc, spare = 0, np.empty(PIECE if verify else 0, dtype=np.uint8)
        for at in range(start, start + info.file_size if verify else start, PIECE):
            piece = spare[: start + info.file_size - at]
            self.read(at, piece)
            crc = crc32(piece, crc)
        if verify and crc != info.CRC:
            raise BadZipFile(f"{info.filename} has another checksum")

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def spec(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return dtype and shape of a column."""
        return self._columns[name].dtype, self._columns[name].shape

    def start(self, name: str) -> int:
        """Return the offset of a column's first row."""
        return self._columns[name].start

    def bytes_of(self, name: str) -> tuple[int, int]:
        """Return offset and bytes of a column of bytes."""
        start, dtype, shape = self._columns[name]
        if dtype != np.uint8 or len(shape) != 1:
            raise ValueError(f"{name} has no bytes")
        return start, shape[0]

    def column(self, name: str, dtype: Any, *shape: int) -> Array:
        """Return a whole column; raise ValueError if its dtype or shape (-1: any) differs."""
        start, own, lengths = self._columns[name]
        fits = len(shape) == len(lengths) and all(a in (-1, b) for a, b in zip(shape, lengths, strict=True))
        if own != np.dtype(dtype) or not fits:
            raise ValueError(f"{name} is {own} {lengths}")
        column = np.empty(lengths, dtype=own)
        self.read(start, raw(column))
        return column

    def read(self, at: int, target: Raw) -> None:
        """Fill `target` from byte `at`."""
        if self._file < 0:
            self._file = self._open()
            try:
                self.read(at, target)
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
            view, at = view[count:], at + count

    def check(self, block: Block) -> None:
        """Raise an error if others could have written the file, and rows are not of its frames."""
        if self.trusted:
            return
        try:
            last = block.at if block.form == Form.PAIR else block.at + _lasts(block.form, block.values)
            if len(last) and int(last.max()) >= self.frames:
                raise ValueError("pairs are of frames that are not there")
            if block.width == ENCODED and not all(type(key) is bytes for key in block.keys):
                raise ValueError("keys are no keys")
        except PARSE_ERRORS as error:
            raise self.bad(f"it makes no sense: {error}") from error

    def unpack(self, data: Raw, rows: int) -> list[Any]:
        """Return the Python objects of some rows."""
        try:
            return unpack(data, rows, self.trusted)
        except PARSE_ERRORS as error:
            raise self.bad(f"its values make no sense: {error}") from error


def write_part(
    directory: Path, blocks: Sequence[Block], frames: FrameTable, covered: BitMap64, pickles: bool, **about: Any
) -> Path:
    """Write blocks of any kinds as a part, with frame numbers as steps; `about`: identity, home, combined, pairs."""
    path = directory / f"{secrets.token_hex(8)}{SUFFIX}"
    kinds: dict[Kind, list[Block]] = {}
    for block in blocks:
        kinds.setdefault(block.kind, []).append(block)
    with whole_file(path, mode=0o600) as file:
        writer, packer = ColumnWriter(file), Packer(pickles)
        described = [_write_block(writer, str(i), alike, packer) for i, alike in enumerate(kinds.values())]
        writer.add("covered", np.array(covered.to_array(), dtype=np.int64))
        writer.add("numbers", np.asarray(frames.steps, dtype=np.int64))
        writer.add("times", frames.times)
        if frames.boxes is not None:
            writer.add("boxes", frames.boxes)
        description = {
            **{"identity": "", "home": "", "combined": False, "pairs": sum(map(count_pairs, blocks)), **about},
            "pickled": packer.pickled,
            "blocks": described,
        }
        writer.finish(DESCRIPTION, json.dumps(description).encode())
    return path


@dataclass(frozen=True)
class Summary:
    """Summary of a part: its map, its frames, and its numbers of pairs and bytes."""

    identity: str
    covered: BitMap64 = field(repr=False)
    pairs: int
    nbytes: int
    combined: bool


def read_summary(path: Path) -> Summary:
    """Return the summary of a part without reading its pairs."""
    file = ColumnFile(path, verify=["covered.npy"])
    try:
        return _summary(file)
    except PARSE_ERRORS as error:
        raise file.damaged(f"it makes no sense: {error}") from error
    finally:
        file.close()


def open_part(path: Path, *, trusted: bool, identity: str = "", home: str = "", check: bool = True) -> Part:
    """Open a part of the map `identity`; `check` is False if this process has just written it.

    Only a part that nobody else can have written is `trusted` and may have pickles, of the module `home` ("": any).
    """
    file = ColumnFile(path, None if check else ())
    try:
        described = file.description
        if described["identity"] != identity:
            raise file.bad("it is of another map")
        if described["pickled"] and not trusted:
            raise file.bad("it has values that are pickled, which are not read here")
        if described["pickled"] and home and described["home"] != home:
            raise file.bad(f"it has pickles of {described['home']}, and this run has its classes under another name")
        part = Part(file, trusted)
        if check and not trusted:
            part.chosen()  # raises an error for rows that make no sense
        return part
    except PARSE_ERRORS as error:
        raise file.damaged(f"it makes no sense: {error}") from error


class Part:
    """A checked part."""

    def __init__(self, file: ColumnFile, trusted: bool) -> None:
        summary = _summary(file)
        self.covered, self.combined = summary.covered, summary.combined
        self.pairs, self.nbytes = summary.pairs, summary.nbytes
        numbers = file.column("numbers", np.int64, -1)
        times = file.column("times", np.float64, len(numbers))
        boxes = file.column("boxes", np.float32, len(numbers), 6) if "boxes" in file else None
        if not BitMap64(numbers.astype(np.uint64)) <= self.covered:
            raise ValueError("it has pairs of frames that it does not cover")
        self.frames = FrameTable(numbers, times, boxes)  # of its pairs, whose steps are frame numbers
        file.trusted, file.frames = trusted, len(numbers)
        self._file = file
        self._blocks = [_read_block(file, str(i), block) for i, block in enumerate(file.description["blocks"])]

    def on_disk(self, offset: int = 0) -> list[FileBlock]:
        """Return all blocks for reading by ranges of shards; `offset` is added to `at`."""
        return [replace(block, offset=offset) for block in self._blocks]

    def chosen(self, requested: BitMap64 | None = None, offset: int = 0) -> tuple[list[Block], FrameTable]:
        """Return the pairs of `requested` frames (None: all), `at` plus `offset`, and their table by frame numbers."""
        frames = self.frames
        if requested is None or self.covered <= requested:
            return [block.part(0, SHARDS) for block in self.on_disk(offset)], frames
        if self.combined:
            raise ValueError("what combine() made can only be used as a whole")
        present = BitMap64(frames.steps.astype(np.uint64)) & requested
        mask = np.isin(frames.steps, np.array(present.to_array(), dtype=np.int64))
        blocks, frames = (
            [choose_rows(block.part(0, SHARDS), mask) for block in self._blocks],
            frames.chosen(np.flatnonzero(mask)),
        )
        if frames.boxes is not None and np.isnan(frames.boxes).all():
            frames = replace(frames, boxes=None)  # as if the other frames were never read
        return [replace(block, at=block.at + np.uint32(offset)) for block in blocks if len(block)], frames

    def close(self) -> None:
        """Close the file; data in memory stay."""
        self._file.close()


def count_pairs(block: Block) -> int:
    """Return the number of pairs of a block."""
    if block.form == Form.PAIR or block.values is None:
        return len(block)
    counts = block.values if block.form == Form.INTERVAL else np.bitwise_count(block.values)
    return int(counts.sum(dtype=np.int64))


def _summary(file: ColumnFile) -> Summary:
    described = file.description
    identity, pairs, combined = described["identity"], described["pairs"], described["combined"]
    if type(identity) is not str or type(pairs) is not int or type(combined) is not bool:
        raise ValueError("it does not say what it has")
    numbers = file.column("covered", np.int64, -1)
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < LAST:
        raise ValueError("covered frames are none")
    return Summary(identity, BitMap64(numbers.astype(np.uint64)), pairs, file.nbytes, combined)


def _write_block(writer: ColumnWriter, name: str, blocks: Sequence[Block], packer: Packer) -> dict[str, Any]:
    """Write blocks of one kind as one block; return its description."""
    stack = MergedBlocks(blocks)
    for spec in stack.specs.values():
        if not spec.dtype.hasobject and describe(spec.dtype) is None:
            raise NotPlainError(
                f"values of the type {spec.dtype} cannot be kept; yield numbers of one of numpy's own types"
            )
    written = write_block(writer, name, stack, packer)
    writer.add(f"{name}.bounds", written.bounds)
    writer.add(f"{name}.stops", written.stops)
    values = stack.specs.get("values")
    record = values is not None and values.dtype.type is np.record
    return {"form": int(written.form), "width": written.width, "record": record}


def _read_block(file: ColumnFile, name: str, described: dict[str, Any]) -> FileBlock:
    """Return a block of a file; raise one of `PARSE_ERRORS` if it is malformed."""
    form, width = Form(described["form"]), described["width"]
    bounds = file.column(f"{name}.bounds", np.int64, SHARDS + 1)
    stops = file.column(f"{name}.stops", np.int64, -1)
    rows = int(bounds[-1])
    if bounds[0] != 0 or (np.diff(bounds) < 0).any() or (np.diff(stops, prepend=0) < 0).any():
        raise ValueError("sizes of shards, or pieces, are none")
    specs: dict[str, ColumnSpec] = {}
    starts: dict[str, int] = {}
    pieces: dict[str, list[tuple[int, int]]] = {}
    for column in ("keys", "at", "order", "values"):
        if f"{name}.{column}" in file:
            dtype, shape = file.spec(f"{name}.{column}")
            if shape[0] != rows:
                raise ValueError(f"{column} has {shape[0]} rows of {rows}")
            if column == "values" and described["record"] and dtype.names:
                dtype = np.dtype((np.record, dtype))
            specs[column], starts[column] = ColumnSpec(dtype, shape[1:]), file.start(f"{name}.{column}")
        elif f"{name}.{column}.0" in file:
            if not len(stops) or stops[-1] != rows:
                raise ValueError("pieces of a column are not there")
            specs[column] = ColumnSpec(np.dtype(object), ())
            pieces[column] = [file.bytes_of(f"{name}.{column}.{piece}") for piece in range(len(stops))]
    _check_specs(form, width, specs)
    return FileBlock(file, form, width, bounds, specs, starts, pieces, stops)


def _check_specs(form: Form, width: Any, specs: dict[str, ColumnSpec]) -> None:
    """Raise ValueError unless the columns fit a `Block`."""
    if type(width) is not int or not {"keys", "at"} <= specs.keys() <= {"keys", "at", "order", "values"}:
        raise ValueError("a block has other columns")
    number, keys = ColumnSpec(np.dtype(np.uint32), ()), (width,) if width > 0 else ()
    right = specs["at"] == number and specs.get("order", number) == number
    right &= specs["keys"] == (
        ColumnSpec(np.dtype(object), ()) if width == ENCODED else ColumnSpec(np.dtype(np.int64), keys)
    )
    if form == Form.BITS:
        values = specs["values"]
        right &= values.dtype == np.uint64 and len(values.shape) == 1 and values.shape[0] > 0
    elif form == Form.INTERVAL:
        right &= specs["values"] == number
    if not right or width < ROWS:
        raise ValueError("a block has columns of other types")


def _lasts(form: Form, values: Any) -> Bounds:
    """Return the offset of the last frame of each row of presence from its first one."""
    filled = (values != 0) if form == Form.BITS else (values != 0)[:, np.newaxis]
    if not filled.any(axis=1).all():
        raise ValueError("a key is present at no frame")
    if form == Form.INTERVAL:
        lengths: Bounds = values
        return lengths.astype(np.int64) - 1
    words = values.shape[1] - 1 - np.argmax(filled[:, ::-1], axis=1)
    word = values[np.arange(len(values)), words]
    for shift in (1, 2, 4, 8, 16, 32):
        word |= word >> np.uint64(shift)
    last: Bounds = 64 * words + np.bitwise_count(word) - 1
    return last
