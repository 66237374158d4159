import numpy as np
import numpy.typing as npt

class PusherHandle:
    def __init__(
        self,
        servers: list[str],
        dataset: str,
        generation: bytes,
        key_file: bytes | None,
        durable: bool,
        timeout_ms: int,
        batch_bytes: int,
    ) -> None: ...
    def push(
        self,
        number: int,
        time: float,
        positions: npt.NDArray[np.float32],
        box: npt.ArrayLike | None,
        velocities: npt.NDArray[np.float32] | None,
        forces: npt.NDArray[np.float32] | None,
    ) -> None: ...
    def flush(self) -> None: ...
    def facts(self) -> dict[str, int]: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...
