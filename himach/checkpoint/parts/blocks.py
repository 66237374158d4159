"""Blocks in a file: `write_blocks()`, `read_block()`, and `PartBlock`, read by ranges of shards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from himach.checkpoint.parts.columns import PARSE_ERRORS, ColumnFile, ColumnWriter, WrittenColumn, describe
from himach.checkpoint.parts.plain import NotPlainError, pickles_in, read_keys, read_objects, write_keys, write_objects
from himach.engine.pairs.block import SHARDS, Array, Block, Bounds, Columns, ColumnSpec, Form, Kind, block_kind, objects
from himach.engine.pairs.keys import ENCODED, ROWS
from himach.engine.shuffle.stack import MergedBlocks

#: Bytes of rows joined per write, and bytes counted per Python object.
TOGETHER, OBJECT = 1 << 22, 64
#: Multiple of this size up to which a single shard is still joined.
SHARD = 4
#: Rows checked at a time.
CHECKED = 1 << 20


@dataclass(frozen=True, slots=True)
class PartBlock:
    """A block in the file of a part: `form`, `width` and `bounds` of the `Block`, and its column types."""

    form: Form
    width: int
    bounds: Bounds
    specs: dict[str, ColumnSpec]
    _file: ColumnFile = field(repr=False)
    _columns: dict[str, int]  # column numbers, except those of objects
    _pieces: dict[str, list[Any]]  # columns of objects, in pieces of several rows
    _ends: Bounds  # the end row of each piece, exclusive
    _frames: int  # rows of the table of frames
    offset: int = 0
    _known: dict[tuple[str, int], Array] = field(default_factory=dict, repr=False)  # pieces already read

    @property
    def kind(self) -> Kind:
        """Kind of the `Block`."""
        return block_kind(self.form, self.width, self.specs)

    def part(self, start: int, stop: int) -> Block:
        """Return the shards from `start` to `stop`, from memory if the part is loaded, else from disk."""
        first, last = self.bounds[[start, stop]].tolist()
        columns = {name: self._file.rows(number, first, last) for name, number in self._columns.items()}
        columns |= {name: self._objects(name, first, last) for name in self._pieces}
        if not self._file.in_memory:
            try:
                self._check(columns)
            except PARSE_ERRORS as error:
                raise self._file.bad(f"it makes no sense: {error}") from error
        if self.offset:
            at = columns["at"]
            columns["at"] = np.add(at, np.uint32(self.offset), out=None if self._file.in_memory else at)
        return Block(self.form, self.width, self.bounds[start : stop + 1] - first, **columns)

    def _objects(self, name: str, first: int, last: int) -> Array:
        stops, pieces = self._ends, self._pieces[name]
        parts = [objects([])]
        piece = int(np.searchsorted(stops, first, side="right"))
        while first < last:
            start, stop = int(stops[piece - 1]) if piece else 0, int(stops[piece])
            cached = self._known.get((name, piece))
            rows = self._piece(name, pieces[piece], stop - start) if cached is None else cached
            parts.append(rows[first - start : last - start])
            first, piece = stop, piece + 1
        return np.concatenate(parts)

    def _piece(self, name: str, described: Any, count: int) -> Array:
        try:
            if name == "keys":
                return read_keys(self._file, described, count)
            return objects(read_objects(self._file, described, count))
        except PARSE_ERRORS as error:
            raise self._file.bad(f"its {name} make no sense: {error}") from error

    def load_objects(self) -> None:
        """Read all Python objects and keep them in memory."""
        for name, pieces in self._pieces.items():
            for number, count in enumerate(np.diff(self._ends, prepend=0).tolist()):
                self._known[name, number] = self._piece(name, pieces[number], count)

    def check(self) -> None:
        """Raise ValueError if a row refers to a frame beyond the table."""
        names = ["at"] if self.form == Form.PAIR else ["at", "values"]
        for start in range(0, int(self.bounds[-1]), CHECKED):
            stop = min(start + CHECKED, int(self.bounds[-1]))
            self._check({name: self._file.rows(self._columns[name], start, stop) for name in names})

    def _check(self, columns: Columns) -> None:
        at = columns["at"]
        last = at if self.form == Form.PAIR else at + _lasts(self.form, columns["values"])
        if len(last) and int(last.max()) >= self._frames:
            raise ValueError("pairs are of frames that are not there")


def write_blocks(writer: ColumnWriter, blocks: Sequence[Block], pickles: bool) -> dict[str, Any]:
    """Write blocks of one kind as one block, several shards at a time."""
    stack = MergedBlocks(blocks)
    bounds: Bounds = stack.bounds.sum(axis=0)
    rows = int(bounds[-1])
    open_columns: dict[str, tuple[int, WrittenColumn]] = {}
    pieces: dict[str, list[Any]] = {}
    row_bytes = 0
    for name, spec in stack.specs.items():
        if spec.dtype.hasobject:
            pieces[name] = []
            row_bytes += OBJECT
        else:
            open_columns[name] = writer.reserve(_plain_dtype(spec.dtype), [rows, *spec.shape])
            row_bytes += spec.nbytes
    sizes, counts = np.diff(bounds), []
    for columns in _pieces(stack, bounds, max(1, TOGETHER // row_bytes)):
        counts.append(len(columns["at"]))
        for name, column in columns.items():
            if name in open_columns:
                open_columns[name][1].append(column)
            elif name == "keys":
                pieces[name].append(write_keys(writer, column.tolist()))
            else:
                pieces[name].append(write_objects(writer, column.tolist(), pickles))
    return {
        "form": int(blocks[0].form),
        "width": blocks[0].width,
        "sizes": writer.add(sizes.astype(np.min_scalar_type(int(sizes.max())))),
        "columns": {name: number for name, (number, _) in open_columns.items()},
        "objects": pieces,
        "counts": writer.add(np.array(counts if pieces else [], dtype=np.int64)),
    }


def read_block(file: ColumnFile, described: dict[str, Any], frames: int, pickles: bool, foreign: str) -> PartBlock:
    """Return a block of a file, of `frames` frames; raise one of `PARSE_ERRORS` if it is malformed.

    If `pickles` are allowed, their classes must not be of the module `foreign`, unless that is "".
    """
    form, width = Form(described["form"]), described["width"]
    bounds = _read_bounds(file, described["sizes"])
    rows = int(bounds[-1])
    columns, pieces = described["columns"], described["objects"]
    specs = {name: ColumnSpec(dtype, shape[1:]) for name, (dtype, shape) in _specs(file, columns, rows)}
    specs |= {name: ColumnSpec(np.dtype(object), ()) for name in pieces}
    _check_specs(form, width, specs)
    counts = file.column(described["counts"], np.int64, -1)
    if (counts < 0).any() or (pieces and sum(counts.tolist()) != rows):
        raise ValueError("pieces of a column are none")
    for listed in pieces.values():
        if len(listed) != len(counts):
            raise ValueError("pieces of a column are not there")
    for number in pickles_in(pieces.get("values")):
        if not pickles:
            raise file.bad("it has values that are pickled, which are not read here")
        if foreign and re.search(re.escape(foreign).encode(), file.column(number, np.uint8, -1)):
            raise file.bad(f"it has values of classes of {foreign}, which this run has under another name")
    return PartBlock(form, width, bounds, specs, file, columns, pieces, np.cumsum(counts), frames)


def _pieces(stack: MergedBlocks, bounds: Bounds, most: int) -> Iterator[Columns]:
    """Yield the rows of stacked blocks: about `most` at a time, or a shard; a far larger shard block by block."""
    start, stop = 0, 0
    while bounds[start] < bounds[-1]:
        stop = max(start + 1, int(np.searchsorted(bounds, bounds[start] + most, side="right")) - 1)
        rows = bounds[stop] - bounds[start]
        if 0 < rows <= SHARD * most:
            yield stack.part(start, stop).columns()
        elif rows:
            for block in stack.blocks:
                part = block.part(start, stop)
                columns = part.columns()
                missing = {name: spec for name, spec in stack.specs.items() if name not in columns}
                yield columns | {name: np.zeros(len(part), spec.dtype) for name, spec in missing.items()}
        start = stop


def _read_bounds(file: ColumnFile, number: Any) -> Bounds:
    dtype, _ = file.spec(number)
    sizes = file.column(number, dtype, SHARDS)
    if dtype.kind != "u" or sum(sizes.tolist()) >= 1 << 62:
        raise ValueError("sizes of shards are none")
    bounds = np.zeros(SHARDS + 1, dtype=np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _plain_dtype(dtype: np.dtype[Any]) -> Any:
    described = describe(dtype)
    if described is None:
        raise NotPlainError(f"values of the type {dtype} cannot be kept; yield numbers of one of numpy's own types")
    return described


def _specs(
    file: ColumnFile, columns: dict[str, Any], rows: int
) -> Iterator[tuple[str, tuple[np.dtype[Any], tuple[int, ...]]]]:
    for name, number in columns.items():
        dtype, shape = file.spec(number)
        if shape[0] != rows:
            raise ValueError(f"column {number} has {shape[0]} rows of {rows}")
        yield name, (dtype, shape)


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


def _lasts(form: Form, values: Array) -> Bounds:
    """Return the offset of the last frame of each row of presence from its first one."""
    filled = (values != 0) if form == Form.BITS else (values != 0)[:, np.newaxis]
    if not filled.any(axis=1).all():
        raise ValueError("a key is present at no frame")
    if form == Form.INTERVAL:
        return values.astype(np.int64) - 1
    words = values.shape[1] - 1 - np.argmax(filled[:, ::-1], axis=1)
    word = values[np.arange(len(values)), words]
    for shift in (1, 2, 4, 8, 16, 32):
        word |= word >> np.uint64(shift)
    last: Bounds = 64 * words + np.bitwise_count(word) - 1
    return last
