import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

def way() -> str: ...
def unpack(block: bytes | bytearray, out: Vectors, portable: bool = False) -> bool: ...

class Packer:
    def pack(self, positions: Vectors, block_atoms: int = 4096) -> list[bytes] | None: ...
