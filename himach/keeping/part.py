"""A part: one file of kept pairs. `write_part()`, `open_part()`, `Part`; `read_summary()` for what lists them.

A part has blocks, one of each kind, the table of the frames that their pairs are of, and the numbers of all frames that
it covers, with pairs or without. It is written under a name that nobody looks for and then renamed, and never changed.
A power cut may leave it torn all the same; the checksums tell (`himach.keeping.columns`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.engine.pairs.block import SHARDS, Array, Block, Bounds, Form, Kind, objects
from himach.engine.pairs.keys import ENCODED
from himach.engine.pairs.stamps import FrameTable
from himach.engine.shuffle.stack import Spec, Stack
from himach.keeping.choosing import chosen_rows
from himach.keeping.columns import (
    NONSENSE,
    BadPartError,
    ColumnFile,
    ColumnWriter,
    WrittenColumn,
    describe,
)
from himach.keeping.plain import NotPlainError, read_keys, read_objects, write_keys, write_objects

__all__ = [
    "BadPartError",
    "NotPlainError",
    "Part",
    "PartBlock",
    "Summary",
    "count_pairs",
    "open_part",
    "read_summary",
    "write_part",
]

#: What names of parts end with, and of parts that are being written.
SUFFIX, UNFINISHED = ".pairs", ".tmp"
#: Bytes of rows that are put together at a time on their way to the disk, and bytes that a Python object counts.
TOGETHER, OBJECT = 1 << 22, 64
#: Frames that a part covers, at most, and where the last one is, at most.
COVERED, LAST = 1 << 27, 1 << 48

Numbers = npt.NDArray[np.int64]


def write_part(
    directory: Path,
    blocks: Sequence[Block],
    table: FrameTable,
    numbers: Numbers,
    covered: BitMap64,
    *,
    combined: bool,
    pickles: bool,
    identity: str = "",
    pairs: int | None = None,
) -> Path:
    """Write a part; return its path.

    Parameters
    ----------
    directory
        Where; it exists.
    blocks
        Blocks of any kinds; those of one kind become one, in their order.
    table
        The frames of the blocks, by row; steps are not kept, for they belong to one selection.
    numbers
        int64 (n,): the frame number of each row of `table`.
    covered
        The numbers of all frames of which all pairs are in `blocks`.
    combined
        Whether combine() made the pairs, of several frames one: such a part can only be used as a whole.
    pickles
        Whether values that are Python objects may be pickled.
    identity
        What the part belongs to; `open_part()` is to be given the same.
    pairs
        How many pairs map() yielded; None: as many as there are.

    Raises
    ------
    NotPlainError
        If a value would have to be pickled.
    OSError
        If the disk does not take it; nothing is left of it then.
    """
    name = secrets.token_hex(8)
    unfinished, path = directory / f".{name}{UNFINISHED}", directory / f"{name}{SUFFIX}"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            writer = ColumnWriter(file)
            kinds: dict[Kind, list[Block]] = {}
            for block in blocks:
                kinds.setdefault(block.kind, []).append(block)
            written = [_write_blocks(writer, alike, pickles) for alike in kinds.values()]
            writer.finish(
                {
                    "identity": identity,
                    "combined": combined,
                    "pairs": sum(map(count_pairs, blocks)) if pairs is None else pairs,
                    "covered": _write_covered(writer, covered),
                    "numbers": writer.add(np.ascontiguousarray(numbers, dtype=np.int64)),
                    "times": writer.add(np.ascontiguousarray(table.times)),
                    "boxes": None if table.boxes is None else writer.add(np.ascontiguousarray(table.boxes)),
                    "blocks": written,
                }
            )
        finally:
            os.close(file)  # where a network's disk says that it was full
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return path


@dataclass(frozen=True)
class Summary:
    """What a part says of itself: the frames that it covers, how many pairs it has, and its bytes."""

    covered: BitMap64
    pairs: int
    nbytes: int
    combined: bool


def read_summary(path: Path) -> Summary:
    """Return what a part says of itself; its pairs are not read.

    Raises
    ------
    BadPartError
        If it cannot be used, as far as that can be told.
    """
    file = ColumnFile(path)
    try:
        return _summary(file)
    finally:
        file.close()


def open_part(path: Path, *, pickles: bool, identity: str = "", hold: bool = True) -> Part:
    """Open a part and check all of it.

    Parameters
    ----------
    path
        Its file.
    pickles
        Whether it may have values that are pickled.
    identity
        What it must belong to.
    hold
        Whether its pairs are to be in memory from now on; else they are read again where they are asked for.

    Raises
    ------
    BadPartError
        For whatever is wrong with it.
    """
    file = ColumnFile(path)
    try:
        if file.description.get("identity") != identity:
            raise file.bad("it is of another map")
        summary = _summary(file)
        file.verify(hold)
        return Part(file, summary, pickles)
    except NONSENSE as error:
        raise file.bad(f"it makes no sense: {error}") from error
    except BaseException:
        file.close()
        raise


class Part:
    """A part that was checked.

    Attributes
    ----------
    path
        Its file.
    covered
        The numbers of the frames whose pairs are in it.
    combined
        Whether it can only be used as a whole.
    pairs, nbytes
        How many pairs it has, and the bytes of its file.
    held
        Whether its pairs are in memory.
    numbers, times, boxes
        The table of frames of its pairs: int64 (n,), float64 (n,) in ps, and float32 (n, 6) in Å and degrees, rows of
        NaN where a frame has no box, None if none has one.
    """

    def __init__(self, file: ColumnFile, summary: Summary, pickles: bool) -> None:
        said = file.description
        self.path = file.path
        self.covered = summary.covered
        self.combined = summary.combined
        self.pairs = summary.pairs
        self.nbytes = summary.nbytes
        self.numbers: Numbers = file.column(said["numbers"], np.int64, -1)
        self.times: npt.NDArray[np.float64] = file.column(said["times"], np.float64, len(self.numbers))
        self.boxes: npt.NDArray[np.float32] | None = None
        if said["boxes"] is not None:
            self.boxes = file.column(said["boxes"], np.float32, len(self.numbers), 6)
        if len(self.numbers) and not BitMap64(self.numbers.astype(np.uint64)) <= self.covered:
            raise ValueError("it has pairs of frames that it does not cover")
        self.held = file.held
        self._file = file
        self._blocks = [_read_block(file, described, pickles) for described in said["blocks"]]
        for block in self._blocks:
            block.check(len(self.numbers))

    @property
    def frames(self) -> KeptFrames:
        """The table of frames of its pairs."""
        return KeptFrames(self.numbers, self.times, self.boxes)

    def blocks(self) -> list[Block]:
        """Return all blocks, as they were written; `at` is the row of `numbers`."""
        return [block.part(0, SHARDS) for block in self._blocks]

    def on_disk(self, offset: int = 0) -> list[PartBlock]:
        """Return all blocks as they lie in the file, to be read some shards at a time; `offset` is added to `at`."""
        return [replace(block, offset=offset) for block in self._blocks]

    def chosen(self, wanted: BitMap64 | None = None, offset: int = 0) -> tuple[list[Block], KeptFrames]:
        """Return the pairs of frames that are `wanted` (None: of all), and the frames of these pairs.

        `at` is `offset` more than the row of these frames.

        Raises
        ------
        ValueError
            If only some frames are wanted of a part that can only be used as a whole.
        """
        frames = self.frames
        blocks = self.blocks()
        if wanted is not None and not self.covered <= wanted:
            if self.combined:
                raise ValueError("what combine() made can only be used as a whole")
            kept = _among(self.numbers, wanted)
            if not kept.all():
                blocks, frames = [chosen_rows(block, kept) for block in blocks], frames.chosen(kept)
        if offset:
            blocks = [replace(block, at=block.at + np.uint32(offset)) for block in blocks]
        return [block for block in blocks if len(block)], frames

    def close(self) -> None:
        """Close the file; what is in memory stays."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class KeptFrames:
    """Frames by row, as in a `Part`."""

    numbers: Numbers
    times: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.numbers)

    def chosen(self, kept: npt.NDArray[np.bool_]) -> KeptFrames:
        """Return some rows."""
        boxes = None if self.boxes is None else self.boxes[kept]
        # As if the other frames had never been read.
        boxed = boxes is not None and not np.isnan(boxes).all()
        return KeptFrames(self.numbers[kept], self.times[kept], boxes if boxed else None)

    def table(self, selected: range) -> FrameTable:
        """Return the frames as a table of a run that selects them, among others."""
        return FrameTable((self.numbers - selected.start) // selected.step, self.times, self.boxes)


@dataclass(frozen=True, slots=True)
class PartBlock:
    """A block in the file of a part: `form`, `width` and `bounds` of the `Block`, and what its columns are."""

    form: Form
    width: int
    bounds: Bounds
    specs: dict[str, Spec]
    _file: ColumnFile = field(repr=False)
    _columns: dict[str, int]  # numbers of columns, but for those of objects
    _pieces: dict[str, list[Any]]  # columns of objects, as pieces of some rows each
    _ends: Bounds  # the last rows of these pieces, no longer in them
    offset: int = 0

    @property
    def kind(self) -> Kind:
        """As that of the `Block`."""
        values = self.specs.get("values")
        dtype, shape = (None, ()) if values is None else (values.dtype, values.shape)
        return Kind(self.width, self.form, dtype, shape)

    def part(self, start: int, stop: int) -> Block:
        """Return the shards from `start` to `stop`, from memory if the part is there, else from the disk."""
        first, last = self.bounds[[start, stop]].tolist()
        columns = {name: self._file.rows(number, first, last) for name, number in self._columns.items()}
        columns |= {name: self._objects(name, first, last) for name in self._pieces}
        if self.offset:
            columns["at"] = columns["at"] + np.uint32(self.offset)
        return Block(self.form, self.width, self.bounds[start : stop + 1] - first, **columns)

    def _objects(self, name: str, first: int, last: int) -> Array:
        """Return some rows of a column of objects."""
        ends, pieces = self._ends, self._pieces[name]
        some = [objects([])]
        piece = int(np.searchsorted(ends, first, side="right"))
        while first < last:
            begin, end = int(ends[piece - 1]) if piece else 0, int(ends[piece])
            some.append(self._piece(name, pieces[piece], end - begin)[first - begin : last - begin])
            first, piece = end, piece + 1
        return np.concatenate(some)

    def _piece(self, name: str, described: Any, count: int) -> Array:
        try:
            if name == "keys":
                return read_keys(self._file, described, count)
            return objects(read_objects(self._file, described, count))
        except NONSENSE as error:
            raise self._file.bad(f"its {name} make no sense: {error}") from error

    def check(self, frames: int) -> None:
        """Raise ValueError if a row is of a frame beyond those of the table."""
        for start in range(0, int(self.bounds[-1]), TOGETHER // 4):
            stop = min(start + TOGETHER // 4, int(self.bounds[-1]))
            at = self._file.rows(self._columns["at"], start, stop)
            last = int(at.max())
            if self.form != Form.PAIR:
                values = self._file.rows(self._columns["values"], start, stop)
                last = int((at + _lasts(self.form, values)).max())
            if last >= frames:
                raise ValueError("pairs are of frames that are not there")


def count_pairs(block: Block) -> int:
    """Return how many pairs a block has."""
    if block.form == Form.PAIR or block.values is None:
        return len(block)
    counts = block.values if block.form == Form.INTERVAL else np.bitwise_count(block.values)
    return int(counts.sum(dtype=np.int64))


def _lasts(form: Form, values: Array) -> Numbers:
    """Return how many frames after its first one the last frame of each row of presence is."""
    filled = (values != 0) if form == Form.BITS else (values != 0)[:, np.newaxis]
    if not filled.any(axis=1).all():
        raise ValueError("a key is present at no frame")
    if form == Form.INTERVAL:
        return values.astype(np.int64) - 1
    words = values.shape[1] - 1 - np.argmax(filled[:, ::-1], axis=1)
    word = values[np.arange(len(values)), words]
    for shift in (1, 2, 4, 8, 16, 32):
        word |= word >> np.uint64(shift)
    last: Numbers = 64 * words + np.bitwise_count(word) - 1
    return last


def _among(numbers: Numbers, wanted: BitMap64) -> npt.NDArray[np.bool_]:
    """Return which numbers are wanted, bool (n,)."""
    there = np.array((BitMap64(numbers.astype(np.uint64)) & wanted).to_array(), dtype=np.int64)
    return np.isin(numbers, there)


def _write_blocks(writer: ColumnWriter, blocks: Sequence[Block], pickles: bool) -> dict[str, Any]:
    """Write blocks of one kind as one block, some shards at a time."""
    stack = Stack(blocks)
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
    counts = []
    for start, stop in _together(bounds, max(1, TOGETHER // row_bytes)):
        part = stack.part(start, stop)
        counts.append(len(part))
        for name, column in part.columns().items():
            if name in open_columns:
                open_columns[name][1].append(column)
            elif name == "keys":
                pieces[name].append(write_keys(writer, column.tolist()))
            else:
                pieces[name].append(write_objects(writer, column.tolist(), pickles))
    return {
        "form": int(blocks[0].form),
        "width": blocks[0].width,
        "bounds": writer.add(bounds),
        "columns": {name: number for name, (number, _) in open_columns.items()},
        "objects": pieces,
        "counts": writer.add(np.array(counts if pieces else [], dtype=np.int64)),
    }


def _together(bounds: Bounds, most: int) -> Iterator[tuple[int, int]]:
    """Give ranges of shards that have so many rows, or are one shard; those without rows are left out."""
    start, shards = 0, len(bounds) - 1
    while bounds[start] < bounds[-1]:
        stop = max(start + 1, int(np.searchsorted(bounds, bounds[start] + most, side="right")) - 1)
        stop = min(stop, shards)
        if bounds[stop] > bounds[start]:
            yield start, stop
        start = stop


def _plain_dtype(dtype: np.dtype[Any]) -> Any:
    described = describe(dtype)
    if described is None:
        raise NotPlainError(f"values of the type {dtype} cannot be kept; yield numbers of one of numpy's own types")
    return described


def _read_block(file: ColumnFile, described: dict[str, Any], pickles: bool) -> PartBlock:
    """Return a block of a file; one of `NONSENSE` if it is none."""
    form, width = Form(described["form"]), described["width"]
    bounds: Bounds = file.column(described["bounds"], np.int64, SHARDS + 1)
    if int(bounds[0]) != 0 or (np.diff(bounds) < 0).any():
        raise ValueError("bounds of shards are none")
    rows = int(bounds[-1])
    columns, pieces = described["columns"], described["objects"]
    specs = {name: Spec(dtype, shape[1:]) for name, (dtype, shape) in _specs(file, columns, rows)}
    specs |= {name: Spec(np.dtype(object), ()) for name in pieces}
    _check_specs(form, width, specs)
    counts = file.column(described["counts"], np.int64, -1)
    if (counts < 0).any() or (pieces and sum(counts.tolist()) != rows):
        raise ValueError("pieces of a column are none")
    for listed in pieces.values():
        if len(listed) != len(counts):
            raise ValueError("pieces of a column are not there")
    if not pickles and "values" in pieces and _has_pickles(pieces["values"]):
        raise file.bad("it has values that are pickled, which are not read here")
    order = {name: specs[name] for name in ("keys", "at", "order", "values") if name in specs}
    return PartBlock(form, width, bounds, order, file, columns, pieces, np.cumsum(counts))


def _specs(
    file: ColumnFile, columns: dict[str, Any], rows: int
) -> Iterator[tuple[str, tuple[np.dtype[Any], tuple[int, ...]]]]:
    for name, number in columns.items():
        dtype, shape = file.spec(number)
        if shape[0] != rows:
            raise ValueError(f"column {number} has {shape[0]} rows of {rows}")
        yield name, (dtype, shape)


def _check_specs(form: Form, width: Any, specs: dict[str, Spec]) -> None:
    """Raise ValueError unless columns are those of a `Block`."""
    if type(width) is not int or not {"keys", "at"} <= specs.keys() <= {"keys", "at", "order", "values"}:
        raise ValueError("a block has other columns")
    number, keys = Spec(np.dtype(np.uint32), ()), (width,) if width > 0 else ()
    right = specs["at"] == number and specs.get("order", number) == number
    right &= specs["keys"] == (Spec(np.dtype(object), ()) if width == ENCODED else Spec(np.dtype(np.int64), keys))
    if form == Form.BITS:
        values = specs["values"]
        right &= values.dtype == np.uint64 and len(values.shape) == 1 and values.shape[0] > 0
    elif form == Form.INTERVAL:
        right &= specs["values"] == number
    if not right or width < ENCODED:
        raise ValueError("a block has columns of other types")


def _has_pickles(described: Any) -> bool:
    """Tell whether a column of objects, or a part of it, is pickled."""
    return described == "pickle" or (isinstance(described, list) and any(map(_has_pickles, described)))


def _summary(file: ColumnFile) -> Summary:
    said = file.description
    try:
        pairs, combined = said["pairs"], said["combined"]
        if type(pairs) is not int or type(combined) is not bool:
            raise ValueError("it does not say what it has")
        return Summary(_read_covered(file, said["covered"]), pairs, file.nbytes, combined)
    except NONSENSE as error:
        raise file.bad(f"it makes no sense: {error}") from error


def _write_covered(writer: ColumnWriter, covered: BitMap64) -> list[int]:
    """Write frame numbers as runs of numbers that are all one step apart: where each begins, and how many they are."""
    numbers = np.array(covered.to_array(), dtype=np.int64)
    steps, counts = np.unique(np.diff(numbers), return_counts=True)
    step = int(steps[np.argmax(counts)]) if len(steps) else 1
    first = np.flatnonzero(np.diff(numbers, prepend=np.int64(-1) - step) != step)
    runs = np.stack([numbers[first], np.diff(first, append=len(numbers))], axis=1)
    return [step, writer.add(runs)]


def _read_covered(file: ColumnFile, described: Any) -> BitMap64:
    step, number = described
    shape = file.spec(number)
    runs = file.verified(number)
    if shape[0] != np.int64 or runs.ndim != 2 or runs.shape[1] != 2 or type(step) is not int or step < 1:
        raise ValueError("covered frames are none")
    listed = runs.tolist()
    if any(not 0 <= start < LAST or not 0 < count <= COVERED for start, count in listed):
        raise ValueError("covered frames are none")
    # Numbers that are far from one another take memory each.
    if sum(count for _, count in listed) > COVERED or sum(min(c, c * step >> 16) for _, c in listed) > COVERED >> 7:
        raise ValueError("too many frames are covered")
    covered = BitMap64()
    for start, count in listed:
        covered.update(range(start, start + count * step, step))
    return covered
