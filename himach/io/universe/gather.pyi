import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

def gather(vectors: Vectors, asked: npt.NDArray[np.bool_], indices: Indices) -> Vectors | int: ...
def copy_rows(source: Vectors, target: Vectors, indices: Indices) -> None: ...
