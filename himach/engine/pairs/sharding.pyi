import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

def shard_pairs(
    keys: Integers, counts: Integers, rows: Integers, values: Bytes, shards: int, target: Bytes
) -> Integers: ...
def shard_rows(keys: npt.NDArray[np.int64], shards: int) -> npt.NDArray[np.uint16]: ...
def join_shards(
    addresses: npt.NDArray[np.uint64], bounds: npt.NDArray[np.int64], size: int, target: npt.NDArray[np.uint8]
) -> None: ...
