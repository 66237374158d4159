from typing import Any

import numpy as np
import numpy.typing as npt

def big_endian(
    vectors: npt.NDArray[np.float32], into: npt.NDArray[np.uint8], at: int, divisor: float = 1, factor: float = 1
) -> None: ...
def columns(vectors: npt.NDArray[np.float32], into: npt.NDArray[np.uint8], at: int, stride: int) -> None: ...
def __getattr__(name: str) -> Any: ...
