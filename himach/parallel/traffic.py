"""How often a rank calls MPI, and what it receives by that: `Traffic`, counted by communicators of `counted()`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Traffic", "counted"]

#: Calls in which all ranks of a communicator take part; those of buffers say what they receive.
COLLECTIVES = ("barrier", "Ibarrier", "bcast", "gather", "allgather", "allreduce")
OF_BUFFERS = ("Iallgather", "Allreduce")
MESSAGES = ("Isend", "isend")


@dataclass
class Traffic:
    """What a rank has done.

    Attributes
    ----------
    collectives
        Calls in which all ranks of a communicator take part.
    messages
        Messages to other ranks.
    received
        Bytes that it received in collective calls, and of objects in any.
    """

    collectives: int = 0
    messages: int = 0
    received: int = 0

    def since(self, before: Traffic) -> Traffic:
        """Return what was done since."""
        return Traffic(
            self.collectives - before.collectives, self.messages - before.messages, self.received - before.received
        )

    def __copy__(self) -> Traffic:
        return Traffic(self.collectives, self.messages, self.received)


def counted(mpi: Any, traffic: Traffic) -> Callable[[Any], Any]:
    """Return what makes a communicator of mpi4py's one that counts; objects are counted from now on."""

    def loads(data: Any) -> Any:
        traffic.received += len(data)
        return pickle.loads(data)

    mpi.pickle.__init__(pickle.dumps, loads, pickle.HIGHEST_PROTOCOL)

    def calling(name: str, collectives: int, messages: int, buffers: bool) -> Callable[..., Any]:
        method = getattr(mpi.Intracomm, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            traffic.collectives += collectives
            traffic.messages += messages
            if buffers:
                traffic.received += arguments[1].nbytes
            return method(self, *arguments, **options)

        return call

    methods = {name: calling(name, 1, 0, False) for name in COLLECTIVES}
    methods |= {name: calling(name, 1, 0, True) for name in OF_BUFFERS}
    methods |= {name: calling(name, 0, 1, False) for name in MESSAGES}
    made: Callable[[Any], Any] = type("Counted", (mpi.Intracomm,), methods)
    return made
