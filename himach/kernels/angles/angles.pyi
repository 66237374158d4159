import numpy as np
import numpy.typing as npt

def dihedrals(
    positions: npt.ArrayLike, quadruples: npt.ArrayLike, box: npt.ArrayLike | None = None
) -> npt.NDArray[np.float64]: ...
def order_parameters(
    positions: npt.ArrayLike,
    pairs: npt.ArrayLike,
    kinds: npt.ArrayLike | None = None,
    box: npt.ArrayLike | None = None,
    normal: npt.ArrayLike = (0, 0, 1),
    n_kinds: int | None = None,
) -> npt.NDArray[np.int64]: ...
