"""Types of the finder of patterns."""

import numpy as np
import numpy.typing as npt

MAX_PERIOD: int

class Finder:
    def __init__(self, n_positions: int, budget: int) -> None: ...
    def feed(self, words: npt.NDArray[np.uint64], n_bits: int) -> bool: ...
    def found(
        self,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.int64]]: ...
