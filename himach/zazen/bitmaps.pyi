"""Types of the kernels over bitmap words; all arrays are C-contiguous."""

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

def merge_counts(inbuf: Any, inoutbuf: Any, datatype: Any) -> None: ...
def open_counts(taken: Words, mine: Words, counts: Words) -> int: ...
def claim(taken: Words, counts: Words, mine: Words, share: Words, residue: Words) -> tuple[int, int, bool, bool]: ...
