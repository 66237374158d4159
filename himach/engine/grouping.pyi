import numpy as np
import numpy.typing as npt

def group_rows(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...
def order_rows(
    ids: npt.NDArray[np.uint32], at: npt.NDArray[np.uint32], groups: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]: ...
def gather(
    source: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint32], target: npt.NDArray[np.uint8], size: int
) -> None: ...
