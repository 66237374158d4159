from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

def gather(vectors: Vectors, requested: npt.NDArray[np.bool_], indices: Indices) -> Vectors | int: ...
def first_lost(vectors: Vectors, indices: Indices | None) -> int: ...
def mean_row(vectors: Any, indices: Any) -> npt.NDArray[np.float64] | None: ...
