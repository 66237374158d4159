from typing import Any

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
    positions: npt.ArrayLike, shift: npt.ArrayLike, rotation: Any = None, out: Any = None
) -> npt.NDArray[np.float32]: ...
def deviation_sums(
    structures: npt.ArrayLike, fixed: npt.ArrayLike, reference: Any = None, fitted: Any = None, weights: Any = None
) -> npt.NDArray[np.int64]: ...
def gyration(positions: npt.ArrayLike, weights: Any = None) -> npt.NDArray[np.float64]: ...
def centers(positions: npt.ArrayLike, groups: Any = None, weights: Any = None) -> npt.NDArray[np.float64]: ...
def wrap(
    positions: npt.ArrayLike, box: npt.ArrayLike, groups: Any = None, weights: Any = None, out: Any = None
) -> npt.NDArray[np.float32]: ...
def unwrap(
    positions: npt.ArrayLike, bonds: npt.ArrayLike, box: npt.ArrayLike, out: Any = None
) -> npt.NDArray[np.float32]: ...
def dssp(
    backbone: npt.ArrayLike,
    chains: npt.ArrayLike | None = None,
    prolines: npt.ArrayLike | None = None,
    box: npt.ArrayLike | None = None,
) -> npt.NDArray[np.uint8]: ...
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
def sasa(
    positions: npt.ArrayLike,
    radii: npt.ArrayLike,
    probe: float = 1.4,
    points: int = 960,
    box: npt.ArrayLike | None = None,
    atoms: npt.ArrayLike | None = None,
) -> npt.NDArray[np.float64]: ...
