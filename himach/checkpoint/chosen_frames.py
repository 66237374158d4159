"""The pairs of some frames of a part: `choose_rows()`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Array, Block, Form

#: Marks the absence of a row; rows processed at a time.
NOWHERE, SPAN = np.uint32(2**32 - 1), 1 << 20
#: Rows of bits unpacked at a time, one byte per bit.
SPREAD = 1 << 14

Rows = npt.NDArray[np.bool_]
Numbered = npt.NDArray[np.uint32]


def choose_rows(block: Block, kept: Rows) -> Block:
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
            chosen[name][used : used + len(rows)] = column.take(rows, axis=0)
        bounds += np.searchsorted(rows, block.bounds - start)
        used += len(rows)
    return Block(block.form, block.width, bounds, **{name: column[:used] for name, column in chosen.items()})


def _renumber_rows(form: Form, columns: dict[str, Array], kept: Rows, places: Numbered) -> npt.NDArray[np.intp]:
    """Renumber `at` to the rows of kept frames, `places`, in place; return the rows of the block that remain."""
    at = columns["at"]
    if form == Form.PAIR:
        columns["at"] = np.where(kept, places[:-1], NOWHERE).take(at)
        return np.flatnonzero(columns["at"] != NOWHERE)
    columns["at"] = places[at]
    if form == Form.INTERVAL:
        # The kept frames of an interval are an interval again.
        columns["values"] = places[at + columns["values"]] - columns["at"]
        return np.flatnonzero(columns["values"] != 0)
    columns["values"] = _compact_bits(at, columns["values"], kept)
    return np.flatnonzero(columns["values"].any(axis=1))


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
