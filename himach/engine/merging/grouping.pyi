from typing import overload

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]

def group_rows(keys: Keys) -> tuple[Rows, Keys]: ...
def merge_rows(
    keys: list[Keys], at: list[Rows], places: list[Rows], carried: list[Rows]
) -> tuple[Keys, npt.NDArray[np.int64], Rows, Rows]: ...
@overload
def picked(column: npt.NDArray[np.int64], rows: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]: ...
@overload
def picked(column: npt.NDArray[np.float64], rows: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]: ...
def gather(
    source: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint32], target: npt.NDArray[np.uint8], size: int
) -> None: ...
def renumber(at: Rows, places: Rows) -> Rows: ...
