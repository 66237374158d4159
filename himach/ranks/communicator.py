"""Message passing without mpi4py: `Communicator` and `World`; `alone()`, a world of one rank."""

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:  # the process that starts ranks does without numpy
    import numpy as np
    import numpy.typing as npt

Words: TypeAlias = "npt.NDArray[np.uint64]"


class Communicator(Protocol):
    """The methods of `mpi4py.MPI.Intracomm` that himach uses; upper case moves buffers, lower case objects."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self) -> None: ...
    def Ibarrier(self) -> Any: ...
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
        return obj

    def gather(self, sendobj: Any, root: int = 0) -> Any:
        return [sendobj]

    def allgather(self, sendobj: Any) -> Any:
        return [sendobj]

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        return sendobj

    def iprobe(self, *, tag: int) -> bool:
        return False

    def _refuse(self, *args: Any, **keywords: Any) -> Any:
        raise AssertionError("one rank alone has no others to wait for, to send to or to receive from")

    Ibarrier = Allreduce = Isend = Irecv = isend = recv = _refuse


@dataclass(frozen=True)
class World:
    """All ranks of a run as seen by one rank."""

    comm: Communicator  # all ranks
    node: Communicator  # the ranks of this rank's node
    leaders: Communicator | None  # the first rank of every node, in the order of `nodes`; None on the other ranks
    nodes: tuple[str, ...]  # names of the nodes, sorted
    name: str  # name of this rank's node
    node_ranks: tuple[tuple[int, ...], ...]  # ranks of each of the `nodes`, ascending, in the order of `node`
    bor: Any
    sum: Any
    make_op: Callable[[Callable[[Any, Any, Any], None]], Any]
    share_words: "Callable[[int], Words]"  # returns uint64 (n,) that the ranks of the node share (collective over it)
    make_counter: Callable[[], Iterator[int]]  # of 0, 1, 2, ..., each to only one rank of the node (collective over it)
    await_message: Callable[[int, int], int]
    library: Callable[[], str | None] = lambda: None  # returns name and version of the MPI library; None when alone

    @property
    def node_index(self) -> int:
        """Position of this rank's node in `nodes`."""
        return self.nodes.index(self.name)

    def total(self, numbers: "npt.NDArray[np.int64]") -> "npt.NDArray[np.int64]":
        """Return the sums of the numbers of all ranks (collective)."""
        if self.comm.size == 1:
            return numbers
        sums = numbers.copy()
        self.comm.Allreduce(numbers, sums, self.sum)
        return sums


def own_words(n: int) -> "Words":
    """Return n words of this rank, for a node of one rank."""
    import numpy as np

    return np.empty(n, dtype=np.uint64)


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
        node_ranks=((0,),),
        bor=None,
        sum=None,
        make_op=lambda function: None,
        share_words=own_words,
        make_counter=itertools.count,
        await_message=comm._refuse,
    )
