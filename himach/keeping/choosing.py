"""Rows of some frames: `chosen_rows()` leaves of a block the pairs of the frames that are kept of its table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Array, Block, Form

#: Rows of bits that are spread out at a time, for a byte a bit.
SPREAD = 1 << 14

Rows = npt.NDArray[np.bool_]


def chosen_rows(block: Block, kept: Rows) -> Block:
    """Return the pairs of a block whose frames are `kept`, bool (n,) by row of its table.

    `at` of what is returned counts the rows that are kept; a key that is then at no frame has no row.
    """
    places = np.zeros(len(kept) + 1, dtype=np.uint32)
    np.cumsum(kept, out=places[1:])
    values = block.values
    if block.form == Form.PAIR:
        rows = kept[block.at]
    elif block.form == Form.INTERVAL:
        assert values is not None
        # Frames that are kept of an interval are an interval again.
        values = places[block.at + values] - places[block.at]
        rows = values > 0
    else:
        assert values is not None
        values = _chosen_bits(block.at, values, kept)
        rows = values.any(axis=1)
    columns = block.columns() if values is None else block.columns() | {"values": values}
    chosen = {name: column[rows] for name, column in columns.items()}
    chosen["at"] = places[chosen["at"]]
    ends = np.concatenate([[0], np.cumsum(rows)])
    return replace(block, bounds=ends[block.bounds], **chosen)


def _chosen_bits(at: Array, bits: Array, kept: Rows) -> Array:
    """Return rows of bits (n, w), which begin at frames `at`, with the bits of frames that are kept only, together."""
    chosen = np.empty_like(bits)
    width = 64 * bits.shape[1]
    for first in np.unique(at).tolist():
        mask = np.zeros(width, dtype=bool)
        frames = kept[first : first + width]
        mask[: len(frames)] = frames
        rows = np.flatnonzero(at == first)
        for start in range(0, len(rows), SPREAD):
            some = rows[start : start + SPREAD]
            spread = np.unpackbits(bits[some].astype("<u8").view(np.uint8), axis=1, bitorder="little")
            packed = np.zeros((len(some), width // 8), dtype=np.uint8)
            together = np.packbits(spread[:, mask], axis=1, bitorder="little")
            packed[:, : together.shape[1]] = together
            chosen[some] = packed.view("<u8")
    return chosen
