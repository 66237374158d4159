"""Memory for blocks: `Arena` allocates parts of large pieces, which the operating system can back by large pages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Most bytes of a piece, unless one request is larger.
PIECE_BYTES = 1 << 25
# Alignment of parts, so that the keys in them are aligned.
ALIGNMENT_BYTES = 16

Raw = npt.NDArray[np.uint8]


def fresh(nbytes: int) -> Raw:
    """Return newly allocated memory, uint8 (nbytes,)."""
    return np.empty(nbytes, dtype=np.uint8)


class Arena:
    """Allocates memory; a piece is freed when none of its parts is referenced."""

    def __init__(self) -> None:
        self._allotted = 0
        self._left = fresh(0)

    def take(self, nbytes: int) -> Raw:
        """Return memory, uint8 (nbytes,)."""
        if nbytes > len(self._left):
            # Limit idle memory to half of what is allotted.
            self._left = fresh(max(nbytes, min(self._allotted // 2, PIECE_BYTES)))
        part, self._left = self._left[:nbytes], self._left[-(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES :]
        self._allotted += nbytes
        return part
