from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PAD: int

def decode(
    buffer: npt.NDArray[np.uint8],
    begin: int,
    n_bytes: int,
    ends: Sequence[int],
    index: int,
    precision: float,
    scale: float,
    out: npt.NDArray[np.float32],
    needed: int | None = None,
) -> None: ...
