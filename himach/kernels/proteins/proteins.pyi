import numpy as np
import numpy.typing as npt

def dssp(
    backbone: npt.ArrayLike,
    chains: npt.ArrayLike | None = None,
    prolines: npt.ArrayLike | None = None,
    box: npt.ArrayLike | None = None,
) -> npt.NDArray[np.uint8]: ...
