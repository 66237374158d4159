import numpy as np
import numpy.typing as npt

from himach.frame import Coded

PAD: int

def decode(coded: Coded, out: npt.NDArray[np.float32], needed: int | None = None) -> int: ...
def encode(
    positions: npt.NDArray[np.float32],
    box: npt.NDArray[np.float32],
    step: int,
    time: float,
    precision: float = 1000,
    scale: float = 0.1,
) -> npt.NDArray[np.uint8]: ...
