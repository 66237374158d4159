import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]

def group_rows(keys: Keys) -> tuple[Rows, Keys]: ...
def merge_rows(
    keys: list[Keys], at: list[Rows], places: list[Rows], carried: list[Rows]
) -> tuple[Keys, npt.NDArray[np.int64], Rows, Rows]: ...
