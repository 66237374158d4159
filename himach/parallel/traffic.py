"""How often a rank calls MPI, and what it receives by that: `Traffic`, counted by communicators of `counted()`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Traffic", "counted"]


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
        Bytes that it received in collective calls, its own among them.
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
    """Return what makes a communicator of mpi4py's one that counts.

    Objects are pickled here, as `MPI.pickle` is the user's own and counts nothing.
    """

    def came(data: bytes) -> Any:
        traffic.received += len(data)
        return pickle.loads(data)

    def calling(name: str, collectives: int, messages: int, buffers: bool) -> Callable[..., Any]:
        method = getattr(mpi.Intracomm, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            traffic.collectives += collectives
            traffic.messages += messages
            if buffers:
                traffic.received += arguments[1].nbytes
            return method(self, *arguments, **options)

        return call

    class Counted(mpi.Intracomm):  # type: ignore[misc]
        barrier, Ibarrier = (calling(name, 1, 0, False) for name in ("barrier", "Ibarrier"))
        Iallgather, Allreduce = (calling(name, 1, 0, True) for name in ("Iallgather", "Allreduce"))
        Isend, isend = (calling(name, 0, 1, False) for name in ("Isend", "isend"))

        def bcast(self, value: Any, root: int = 0) -> Any:
            traffic.collectives += 1
            own = self.rank == root
            data = super().bcast(_packed(value) if own else None, root)
            return value if own else came(data)

        def gather(self, value: Any, root: int = 0) -> list[Any] | None:
            traffic.collectives += 1
            told = super().gather(_packed(value), root)
            return None if told is None else [came(data) for data in told]

        def allgather(self, value: Any) -> list[Any]:
            traffic.collectives += 1
            return [came(data) for data in super().allgather(_packed(value))]

        def allreduce(self, value: Any, op: Callable[[Any, Any], Any] = mpi.SUM) -> Any:
            traffic.collectives += 1
            done = super().allreduce(_packed(value), lambda one, other: _packed(op(pickle.loads(one), came(other))))
            return pickle.loads(done) if self.rank == 0 else came(done)

    return Counted


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
