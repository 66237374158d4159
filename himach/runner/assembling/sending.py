"""Bytes from every rank to every other, in messages of bounded size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Communicator

__all__ = ["Inbox", "send_all"]

Bytes = npt.NDArray[np.uint8]

#: Bytes of a message, at most.
MESSAGE = 1 << 24
#: Seconds between two looks at what is under way.
SHORTEST, LONGEST = 5e-5, 1e-3
_BYTE = "B"
_TAG = 7030


class Inbox:
    """Memory for what comes from other ranks, which is used again and again."""

    def __init__(self) -> None:
        self._buffers: dict[int, Bytes] = {}

    def room(self, source: int, size: int) -> Bytes:
        """Return memory for so many bytes of a rank, until the next of the same."""
        buffer = self._buffers.get(source)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[source] = np.empty(size + size // 8, np.uint8)
        return buffer[:size]


def send_all(comm: Communicator, outgoing: Sequence[Bytes], sizes: Sequence[int], inbox: Inbox) -> list[Bytes]:
    """Send ``outgoing[r]`` to rank r, for all other ranks at once, and return what each has sent here (collective).

    `sizes` is what each rank sends here. It then lies in the inbox, until that is used again. Nothing is sent to this
    rank itself.
    """
    incoming = [inbox.room(source, 0 if source == comm.rank else size) for source, size in enumerate(sizes)]
    requests: list[Any] = []
    for source, data in enumerate(incoming):
        requests += [comm.Irecv([piece, _BYTE], source, _TAG) for piece in _pieces(data)]
    for target, data in enumerate(outgoing):
        if target != comm.rank:
            requests += [comm.Isend([piece, _BYTE], target, _TAG) for piece in _pieces(data)]
    _await(requests)
    return incoming


def _await(requests: list[Any]) -> None:
    """Wait for all without taking the processor from those that read and write meanwhile."""
    pause = SHORTEST
    while requests:
        left = [request for request in requests if not request.Test()]
        if len(left) == len(requests):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        else:
            pause = SHORTEST
        requests = left


def _pieces(data: Bytes) -> list[Bytes]:
    return [data[begin : begin + MESSAGE] for begin in range(0, len(data), MESSAGE)]
