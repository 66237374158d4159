"""Memory for blocks: `Arena` gives parts of large pieces, of which the operating system makes few large pages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Bytes of a piece, at most, unless more are asked for at once.
PIECE_BYTES = 1 << 25
# Parts begin at multiples of this, so that the keys in them are aligned.
ALIGNMENT_BYTES = 16

Raw = npt.NDArray[np.uint8]


def fresh(nbytes: int) -> Raw:
    """Return memory of its own, uint8 (nbytes,)."""
    return np.empty(nbytes, dtype=np.uint8)


class Arena:
    """Gives memory, which is free again when nobody holds a part of its piece."""

    def __init__(self) -> None:
        self._allotted = 0
        self._left = fresh(0)

    def take(self, nbytes: int) -> Raw:
        """Return memory, uint8 (nbytes,)."""
        if nbytes > len(self._left):
            # Not more than half as much again lies idle.
            self._left = fresh(max(nbytes, min(self._allotted // 2, PIECE_BYTES)))
        part, self._left = self._left[:nbytes], self._left[-(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES :]
        self._allotted += nbytes
        return part
