"""Frames of a part: those that it covers, and the pairs of chosen ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.checkpoint.parts.columns import ColumnFile, ColumnWriter
from himach.engine.merging.grouping import gather, renumber
from himach.engine.pairs.block import Array, Block, Form, raw, row_bytes

#: Most frames that a part covers, and the bound of their numbers.
COVERED, LAST = 1 << 27, 1 << 48
#: Marks the absence of a row; rows processed at a time.
NOWHERE, SPAN = np.uint32(2**32 - 1), 1 << 20
#: Rows of bits unpacked at a time, one byte per bit.
SPREAD = 1 << 14

Numbers = npt.NDArray[np.int64]
Rows = npt.NDArray[np.bool_]
Numbered = npt.NDArray[np.uint32]


def find_requested(numbers: Numbers, requested: BitMap64) -> Rows:
    """Return whether each number is requested, bool (n,)."""
    present = np.array((BitMap64(numbers.astype(np.uint64)) & requested).to_array(), dtype=np.int64)
    return np.isin(numbers, present)


def chosen_rows(block: Block, kept: Rows) -> Block:
    """Return the pairs of a block whose frames are `kept`, bool (n,) by row of its table."""
    places = np.zeros(len(kept) + 1, dtype=np.uint32)
    np.cumsum(kept, out=places[1:])
    # Allocate for all rows: untouched pages take no memory.
    chosen = {name: np.empty(column.shape, dtype=column.dtype) for name, column in block.columns().items()}
    bounds, used, span = np.zeros_like(block.bounds), 0, SPREAD if block.form == Form.BITS else SPAN
    for start in range(0, len(block), span):
        columns = {name: column[start : start + span] for name, column in block.columns().items()}
        rows = _renumber_rows(block.form, columns, kept, places)
        for name, column in columns.items():
            _pick(column, rows, chosen[name][used : used + len(rows)])
        bounds += np.searchsorted(rows, block.bounds - start)
        used += len(rows)
    return Block(block.form, block.width, bounds, **{name: column[:used] for name, column in chosen.items()})


def stretches(covered: BitMap64) -> tuple[int, Numbers]:
    """Return frame numbers as runs with one common step.

    `ndarray`: int64 (n, 2): the first number and the length of each run.
    """
    numbers = np.array(covered.to_array(), dtype=np.int64)
    steps, counts = np.unique(np.diff(numbers), return_counts=True)
    step = int(steps[np.argmax(counts)]) if len(steps) else 1
    first = np.flatnonzero(np.diff(numbers, prepend=np.int64(-1) - step) != step)
    return step, np.stack([numbers[first], np.diff(first, append=len(numbers))], axis=1)


def write_covered(writer: ColumnWriter, covered: BitMap64) -> list[int]:
    """Write frame numbers as `stretches()`; return their step and the number of their column."""
    step, runs = stretches(covered)
    return [step, writer.add(runs)]


def read_covered(file: ColumnFile, described: Any) -> BitMap64:
    """Return the frame numbers from `write_covered()`; raise one of `PARSE_ERRORS` for other content."""
    step, number = described
    shape = file.spec(number)
    runs = file.verified(number)
    if shape[0] != np.int64 or runs.ndim != 2 or runs.shape[1] != 2 or type(step) is not int or step < 1:
        raise ValueError("covered frames are none")
    listed = runs.tolist()
    if any(not 0 <= start < LAST or not 0 < count <= COVERED for start, count in listed):
        raise ValueError("covered frames are none")
    # Sparse numbers take memory each.
    if sum(count for _, count in listed) > COVERED or sum(min(c, c * step >> 16) for _, c in listed) > COVERED >> 7:
        raise ValueError("too many frames are covered")
    covered = BitMap64()
    for start, count in listed:
        covered.update(range(start, start + count * step, step))
    return covered


def _renumber_rows(form: Form, columns: dict[str, Array], kept: Rows, places: Numbered) -> Numbered:
    """Renumber `at` to the rows of kept frames, in place; return the rows of the block that remain.

    ``places[i]`` is the number of kept rows before row i of the table.
    """
    at = columns["at"]
    if form == Form.PAIR:
        columns["at"] = renumber(at, np.where(kept, places[:-1], NOWHERE))
        return _rows(columns["at"] != NOWHERE)
    columns["at"] = places[at]
    if form == Form.INTERVAL:
        # The kept frames of an interval are an interval again.
        columns["values"] = places[at + columns["values"]] - columns["at"]
        return _rows(columns["values"] != 0)
    columns["values"] = _compact_bits(at, columns["values"], kept)
    return _rows(columns["values"].any(axis=1))


def _rows(mask: Any) -> Numbered:
    return np.flatnonzero(mask).astype(np.uint32)


def _pick(column: Array, rows: Numbered, target: Array) -> None:
    """Copy some rows of a column to another one, byte by byte."""
    if column.dtype.hasobject:
        target[:] = column[rows]
    else:
        gather(raw(column), rows, raw(target), row_bytes(column))


def _compact_bits(at: Array, bits: Array, kept: Rows) -> Array:
    """Return rows of bits (n, w), which begin at frames `at`, reduced to the bits of kept frames."""
    together = np.zeros_like(bits)
    width = 64 * bits.shape[1]
    for first in np.unique(at).tolist():
        rows = np.flatnonzero(at == first)
        frames = kept[first : first + width]
        spread = np.unpackbits(bits[rows].view(np.uint8), axis=1, bitorder="little")[:, : len(frames)]
        packed = np.zeros((len(rows), width // 8), dtype=np.uint8)
        left = np.packbits(spread[:, frames], axis=1, bitorder="little")
        packed[:, : left.shape[1]] = left
        together[rows] = packed.view(np.uint64)
    return together
