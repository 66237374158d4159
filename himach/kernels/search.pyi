import numpy as np
import numpy.typing as npt

def within(
    positions: npt.ArrayLike, others: npt.ArrayLike, cutoff: float, box: npt.ArrayLike | None = None
) -> npt.NDArray[np.int64]: ...
