"""Bytes from every node to every other, in messages of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Communicator

__all__ = ["send_all"]

Bytes = npt.NDArray[np.uint8]

#: Bytes of a message, at most.
MESSAGE = 1 << 24
_BYTE = "B"
_TAG = 7030


def send_all(comm: Communicator, outgoing: Sequence[Bytes]) -> list[Bytes]:
    """Send ``outgoing[r]`` to rank r, for all ranks at once, and return what each has sent here (collective).

    What a rank sends to itself is not copied.
    """
    sizes = comm.allgather([len(one) for one in outgoing])
    incoming = [
        outgoing[comm.rank] if source == comm.rank else np.empty(told[comm.rank], np.uint8)
        for source, told in enumerate(sizes)
    ]
    requests: list[Any] = []
    for source, data in enumerate(incoming):
        if source != comm.rank:
            requests += [comm.Irecv([piece, _BYTE], source, _TAG) for piece in _pieces(data)]
    for target, data in enumerate(outgoing):
        if target != comm.rank:
            requests += [comm.Isend([piece, _BYTE], target, _TAG) for piece in _pieces(data)]
    for request in requests:
        request.wait()
    return incoming


def _pieces(data: Bytes) -> list[Bytes]:
    return [data[begin : begin + MESSAGE] for begin in range(0, len(data), MESSAGE)]
