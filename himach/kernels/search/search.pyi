from typing import Any

import numpy as np
import numpy.typing as npt

def within(
    positions: npt.ArrayLike, others: npt.ArrayLike, cutoff: float, box: Any = None
) -> npt.NDArray[np.int64]: ...
def neighbors(
    positions: npt.ArrayLike,
    others: npt.ArrayLike | None,
    cutoff: float,
    box: Any = None,
    return_distances: bool = True,
) -> Any: ...
def contacts(
    positions: npt.ArrayLike,
    groups: npt.ArrayLike,
    others: npt.ArrayLike | None,
    other_groups: npt.ArrayLike | None,
    cutoff: float,
    box: Any = None,
    return_distances: bool = True,
) -> Any: ...
def histogram(
    positions: npt.ArrayLike,
    others: npt.ArrayLike | None,
    cutoff: float,
    bins: int,
    box: Any = None,
    groups: Any = None,
    other_groups: Any = None,
) -> npt.NDArray[np.int64]: ...
