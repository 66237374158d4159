import numpy as np
import numpy.typing as npt

def sasa(
    positions: npt.ArrayLike,
    radii: npt.ArrayLike,
    probe: float = 1.4,
    points: int = 960,
    box: npt.ArrayLike | None = None,
    atoms: npt.ArrayLike | None = None,
) -> npt.NDArray[np.float64]: ...
