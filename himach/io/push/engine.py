"""`EngineStream`: frames of a running engine, received by IMDv3 through imdclient.

imdclient takes over the signals of its process, so only a separate program (`himach.runner.live.receiver`) imports it.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.frame import RawFrame
from himach.io.push.address import UNITS, EngineAddress

RETRY_SECONDS = 0.2  # between attempts to reach an engine that does not listen yet
LONGEST_SECONDS = 2_000_000.0  # about the longest timeout of a socket
RELEASE_SECONDS = 5.0  # for an engine to disconnect a client
MIN_BUFFERED_FRAMES = 8


class EngineStream:
    """The frames that an engine sends, numbered from 0; it is asked to pause when the buffer is 3/4 full."""

    def __init__(
        self,
        address: EngineAddress,
        n_atoms: int,
        idle: float | None,
        patience: float,
        buffer: int,
        stopped: Callable[[], bool],
    ) -> None:
        self.ended = ""
        self.broken = False
        self._address = address
        min_buffer = MIN_BUFFERED_FRAMES * (36 * n_atoms + 128)  # positions, velocities and forces
        timeout = LONGEST_SECONDS if idle is None else idle
        self._client = _connect(address, n_atoms, timeout, max(buffer, min_buffer), patience, stopped)
        self._session = self._client.get_imdsessioninfo()
        fault = ""
        if self._session.version != 3:
            fault = f"speaks version {self._session.version} of IMD, which tells neither time nor box: have it speak 3"
        elif not self._session.positions:
            fault = "sends no positions: turn them on in its input"
        if fault:
            self.disconnect()
            raise TrajectoryError(f"{address} {fault}")
        # A machine that fails does not close the connection.
        self._client._conn.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @property
    def paused(self) -> bool:
        """Whether the engine was asked to pause."""
        return bool(self._client._producer._paused)

    def frames(self) -> Iterator[RawFrame]:
        """Yield each frame as it arrives, until the stream ends; its arrays are valid until the next one."""
        per_time, per_velocity, per_force = UNITS[self._address.units]
        number = 0
        while (received := self._next()) is not None:
            yield RawFrame(
                number,
                number if received.time is None else received.time * per_time,
                received.positions,
                _convert_box(received.box),
                _scale(received.velocities, per_velocity),
                _scale(received.forces, per_force),
            )
            number += 1

    def _next(self) -> Any:
        try:
            return self._client.get_imdframe()
        except EOFError as error:
            cause = error.__cause__
            while cause is not None and isinstance(cause, EOFError):
                cause = cause.__cause__
            self.ended = self.ended or "the stream ended"
            if isinstance(cause, TimeoutError):
                self.ended = "no frame came any more"
            elif cause is not None and not isinstance(cause, OSError):
                self.broken = True
                self.ended = f"what {self._address} sent cannot be used: {cause}"
            return None

    def stop(self) -> None:
        """Ask the engine to disconnect, as it may fail if the connection closes while it sends; for any thread."""
        from imdclient.IMDProtocol import IMDHeaderType, create_header_bytes

        self.ended = self.ended or "it was told to end"
        with contextlib.suppress(OSError):
            self._client._conn.sendall(create_header_bytes(IMDHeaderType.IMD_DISCONNECT, 0))
        timer = threading.Timer(RELEASE_SECONDS, self._close_connection)
        timer.daemon = True
        timer.start()

    def disconnect(self) -> None:
        """Call `stop` and wait until the engine disconnects."""
        self.stop()
        while self._next() is not None:
            pass

    def _close_connection(self) -> None:
        """Close the connection to an engine that does not disconnect."""
        with contextlib.suppress(OSError):
            self._client._conn.shutdown(socket.SHUT_RD)  # wakes the thread that reads
        self._client.stop()


def _connect(
    address: EngineAddress, n_atoms: int, timeout: float, buffer: int, patience: float, stopped: Callable[[], bool]
) -> Any:
    from imdclient.IMDClient import IMDClient

    deadline = time.monotonic() + patience
    while True:
        try:
            return IMDClient(address.host, address.port, n_atoms, timeout=timeout, buffer_size=buffer)
        except ConnectionRefusedError:
            if time.monotonic() > deadline or stopped():
                raise TrajectoryError(
                    f"{address}: nobody listens there; start the engine, which waits for a client, and look at the port"
                ) from None
            time.sleep(RETRY_SECONDS)
        except OSError as error:
            raise TrajectoryError(f"{address} cannot be reached: {error}") from None
        except ValueError as error:  # another protocol
            raise TrajectoryError(f"{address} is no engine that speaks IMDv3: {error}") from None


def _convert_box(vectors: npt.NDArray[Any] | None) -> npt.NDArray[np.float32] | None:
    """Return box lengths in Å and angles in degrees, float32 (6,), from three vectors; None without a box."""
    if vectors is None or not np.any(vectors):
        return None
    from MDAnalysis.lib.mdamath import triclinic_box

    return np.asarray(triclinic_box(*vectors), dtype=np.float32)


def _scale(values: npt.NDArray[np.float32] | None, factor: float) -> npt.NDArray[np.float32] | None:
    if values is not None and factor != 1.0:
        values *= np.float32(factor)
    return values
