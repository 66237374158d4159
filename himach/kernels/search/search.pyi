from typing import Literal, overload

import numpy as np
import numpy.typing as npt

def within(
    positions: npt.ArrayLike, others: npt.ArrayLike, cutoff: float, box: npt.ArrayLike | None = None
) -> npt.NDArray[np.int64]: ...
@overload
def neighbors(
    positions: npt.ArrayLike,
    others: npt.ArrayLike | None,
    cutoff: float,
    box: npt.ArrayLike | None = None,
    return_distances: Literal[True] = True,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]: ...
@overload
def neighbors(
    positions: npt.ArrayLike,
    others: npt.ArrayLike | None,
    cutoff: float,
    box: npt.ArrayLike | None,
    return_distances: Literal[False],
) -> npt.NDArray[np.int64]: ...
@overload
def neighbors(
    positions: npt.ArrayLike,
    others: npt.ArrayLike | None,
    cutoff: float,
    box: npt.ArrayLike | None = None,
    *,
    return_distances: Literal[False],
) -> npt.NDArray[np.int64]: ...
@overload
def contacts(
    positions: npt.ArrayLike,
    groups: npt.ArrayLike,
    others: npt.ArrayLike | None,
    other_groups: npt.ArrayLike | None,
    cutoff: float,
    box: npt.ArrayLike | None = None,
    return_distances: Literal[True] = True,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]: ...
@overload
def contacts(
    positions: npt.ArrayLike,
    groups: npt.ArrayLike,
    others: npt.ArrayLike | None,
    other_groups: npt.ArrayLike | None,
    cutoff: float,
    box: npt.ArrayLike | None,
    return_distances: Literal[False],
) -> npt.NDArray[np.int64]: ...
@overload
def contacts(
    positions: npt.ArrayLike,
    groups: npt.ArrayLike,
    others: npt.ArrayLike | None,
    other_groups: npt.ArrayLike | None,
    cutoff: float,
    box: npt.ArrayLike | None = None,
    *,
    return_distances: Literal[False],
) -> npt.NDArray[np.int64]: ...
def histogram(
    positions: npt.ArrayLike,
    others: npt.ArrayLike | None,
    cutoff: float,
    bins: int,
    box: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    other_groups: npt.ArrayLike | None = None,
) -> npt.NDArray[np.int64]: ...
