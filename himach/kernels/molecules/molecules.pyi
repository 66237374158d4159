from typing import overload

import numpy as np
import numpy.typing as npt

def rmsd(
    positions: npt.ArrayLike,
    reference: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    superposition: bool = True,
) -> float: ...
@overload
def rmsd_matrix(
    a: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    cutoff: None = None,
    weights: npt.ArrayLike | None = None,
    superposition: bool = True,
) -> npt.NDArray[np.float64]: ...
@overload
def rmsd_matrix(
    a: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    cutoff: float,
    weights: npt.ArrayLike | None = None,
    superposition: bool = True,
) -> npt.NDArray[np.uint8]: ...
@overload
def rmsd_matrix(
    a: npt.ArrayLike,
    b: npt.ArrayLike | None,
    cutoff: float,
    weights: npt.ArrayLike | None = None,
    superposition: bool = True,
) -> npt.NDArray[np.uint8]: ...
def superposition(
    positions: npt.ArrayLike, reference: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
def move(
    positions: npt.ArrayLike,
    shift: npt.ArrayLike,
    rotation: npt.ArrayLike | None = None,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]: ...
def deviation_sums(
    structures: npt.ArrayLike,
    fixed: npt.ArrayLike,
    reference: npt.ArrayLike | None = None,
    fitted: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
) -> npt.NDArray[np.int64]: ...
def gyration(positions: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]: ...
def centers(
    positions: npt.ArrayLike, groups: npt.ArrayLike | None = None, weights: npt.ArrayLike | None = None
) -> npt.NDArray[np.float64]: ...
def wrap(
    positions: npt.ArrayLike,
    box: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]: ...
def unwrap(
    positions: npt.ArrayLike, bonds: npt.ArrayLike, box: npt.ArrayLike, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]: ...
