import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]
Bits = npt.NDArray[np.uint64]

class Presence:
    pairs: int
    first: int
    def __init__(self, width: int) -> None: ...
    def add(self, keys: Keys, row: int) -> bool | None: ...
    def take(self) -> tuple[Keys, Bits, Keys, Rows, Rows]: ...
