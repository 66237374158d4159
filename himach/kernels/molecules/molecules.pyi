from typing import Any

import numpy as np
import numpy.typing as npt

def rmsd(
    positions: npt.ArrayLike, reference: npt.ArrayLike, weights: Any = None, superposition: bool = True
) -> float: ...
def rmsd_matrix(
    a: npt.ArrayLike, b: Any = None, cutoff: float | None = None, weights: Any = None, superposition: bool = True
) -> npt.NDArray[Any]: ...
def superposition(
    positions: npt.ArrayLike, reference: npt.ArrayLike, weights: Any = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
def move(
    positions: npt.ArrayLike,
    shift: npt.ArrayLike,
    rotation: Any = None,
    out: Any = None,
) -> npt.NDArray[np.float32]: ...
def deviation_sums(
    structures: npt.ArrayLike,
    fixed: npt.ArrayLike,
    reference: Any = None,
    fitted: Any = None,
    weights: Any = None,
) -> npt.NDArray[np.int64]: ...
def gyration(positions: npt.ArrayLike, weights: Any = None) -> npt.NDArray[np.float64]: ...
def centers(positions: npt.ArrayLike, groups: Any = None, weights: Any = None) -> npt.NDArray[np.float64]: ...
def wrap(
    positions: npt.ArrayLike,
    box: npt.ArrayLike,
    groups: Any = None,
    weights: Any = None,
    out: Any = None,
) -> npt.NDArray[np.float32]: ...
def unwrap(
    positions: npt.ArrayLike, bonds: npt.ArrayLike, box: npt.ArrayLike, out: Any = None
) -> npt.NDArray[np.float32]: ...
