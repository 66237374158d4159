"""What the engine, the protocol and the sources need of message passing, and the stand-in for one process alone.

`Communicator` is the part of mpi4py's communicator that himach uses; `World` bundles the communicators of all ranks, of
one node and of the node leaders with what a node shares. `alone()` is a world of one rank without MPI; `connect()` of
`himach.parallel.mpi` makes the real one. Nothing here imports mpi4py, so protocols take a world as an argument and are
tested with either.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from himach.parallel.traffic import Traffic

Words = npt.NDArray[np.uint64]


class Communicator(Protocol):
    """The methods of `mpi4py.MPI.Intracomm` that himach uses; upper case moves buffers, lower case objects."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self) -> None: ...
    def Ibarrier(self) -> Any: ...
    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Any: ...
    def bcast(self, obj: Any, root: int = 0) -> Any: ...
    def gather(self, sendobj: Any, root: int = 0) -> Any: ...
    def allgather(self, sendobj: Any) -> Any: ...
    def allreduce(self, sendobj: Any, op: Any = ...) -> Any: ...
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any) -> None: ...
    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Any: ...
    def Irecv(self, buf: Any, source: int, tag: int) -> Any: ...
    def isend(self, obj: Any, dest: int, tag: int = 0) -> Any: ...
    def iprobe(self, *, tag: int) -> bool: ...
    def recv(self, *, source: int = ..., tag: int) -> Any: ...


class Alone:
    """A communicator of one rank, without MPI."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """Return at once."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return `obj`."""
        return obj

    def gather(self, sendobj: Any, root: int = 0) -> Any:
        """Return a list of the one object."""
        return [sendobj]

    def allgather(self, sendobj: Any) -> Any:
        """Return a list of the one object."""
        return [sendobj]

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        """Return `sendobj`."""
        return sendobj

    def iprobe(self, *, tag: int) -> bool:
        """Return False: nobody sends."""
        return False

    def _refuse(self, *args: Any, **keywords: Any) -> Any:
        raise AssertionError("one rank alone has no others to wait for, to send to or to receive from")

    Ibarrier = Iallgather = Allreduce = Isend = Irecv = isend = recv = _refuse


class Counter(Protocol):
    """A counter that the ranks of a node share."""

    def next(self) -> int:
        """Return 0, 1, 2, ...: each number to one rank of the node only."""

    def close(self) -> None:
        """Free the counter (collective over the node)."""


class SharedWords(Protocol):
    """Words in a node's memory that its ranks share."""

    @property
    def words(self) -> Words:
        """uint64 (n,), the same on all ranks of the node."""

    def close(self) -> None:
        """Free the words (collective over the node); no view of them may be used any more."""


@dataclass(frozen=True)
class World:
    """All ranks of a run, as one rank sees them.

    Attributes
    ----------
    comm
        All ranks.
    node
        The ranks of this rank's node.
    leaders
        The first rank of every node, in the order of `nodes`; None on the other ranks.
    nodes
        Names of the nodes, sorted.
    name
        Name of this rank's node.
    ranks_of
        The ranks of each of the `nodes`, ascending: those of `node` in their order.
    bor, sum
        Operations of the MPI library (None when alone).
    make_op
        Makes a commutative reduction from ``function(inbuf, inoutbuf, datatype)`` (see `mpi4py.MPI.Op.Create`).
    share_words
        ``share_words(n)``: n words in the node's memory, of any content, as `SharedWords` (collective over the node).
    make_counter
        Makes a `Counter` (collective over the node).
    await_message
        ``await_message(source, tag)``: waits until a message from that rank can be received; returns its 64-bit words.
    library
        Returns name and version of the MPI library; None when alone.
    traffic
        What this rank has done with `comm`, `node` and `leaders`.
    """

    comm: Communicator
    node: Communicator
    leaders: Communicator | None
    nodes: tuple[str, ...]
    name: str
    ranks_of: tuple[tuple[int, ...], ...]
    bor: Any
    sum: Any
    make_op: Callable[[Callable[[Any, Any, Any], None]], Any]
    share_words: Callable[[int], SharedWords]
    make_counter: Callable[[], Counter]
    await_message: Callable[[int, int], int]
    library: Callable[[], str | None] = lambda: None
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def node_index(self) -> int:
        """Position of this rank's node in `nodes`."""
        return self.nodes.index(self.name)

    def total(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sums of the numbers of all ranks (collective)."""
        if self.comm.size == 1:
            return numbers
        sums = np.empty_like(numbers)
        self.comm.Allreduce(numbers, sums, self.sum)
        return sums


class _Count:
    def __init__(self) -> None:
        self._next = 0

    def next(self) -> int:
        number = self._next
        self._next += 1
        return number

    def close(self) -> None:
        pass


class OwnWords:
    """Words in memory of this rank, for a node of one rank."""

    def __init__(self, n: int) -> None:
        self.words: Words = np.empty(n, dtype=np.uint64)

    def close(self) -> None:
        """Let go of them."""
        self.words = np.empty(0, dtype=np.uint64)


def node_name() -> str:
    """Return this rank's node: ``$HIMACH_NODE``, else ``$SLURMD_NODENAME``, else the host name."""
    return os.environ.get("HIMACH_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def alone() -> World:
    """Return a world of one rank on one node, without MPI."""
    comm = Alone()
    name = node_name()
    return World(
        comm=comm,
        node=comm,
        leaders=comm,
        nodes=(name,),
        name=name,
        ranks_of=((0,),),
        bor=None,
        sum=None,
        make_op=lambda function: None,
        share_words=OwnWords,
        make_counter=_Count,
        await_message=comm._refuse,
    )
