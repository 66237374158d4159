import numpy as np
import numpy.typing as npt

def rmsd(
    positions: npt.ArrayLike,
    reference: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    superposition: bool = True,
) -> float: ...
def centers(
    positions: npt.ArrayLike, groups: npt.ArrayLike | None = None, weights: npt.ArrayLike | None = None
) -> npt.NDArray[np.float64]: ...
def wrap(
    positions: npt.ArrayLike,
    box: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
) -> npt.NDArray[np.float32]: ...
def unwrap(positions: npt.ArrayLike, bonds: npt.ArrayLike, box: npt.ArrayLike) -> npt.NDArray[np.float32]: ...
