import numpy as np
import numpy.typing as npt

from himach.frame import Coded

PAD: int

def decode(coded: Coded, out: npt.NDArray[np.float32], needed: int | None = None) -> int: ...
