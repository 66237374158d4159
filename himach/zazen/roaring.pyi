"""Types of the reader of roaring bitmaps."""

import numpy as np
import numpy.typing as npt

def mark(words: npt.NDArray[np.uint64], n_bits: int, start: int, step: int, data: bytes, wide: bool) -> None: ...
