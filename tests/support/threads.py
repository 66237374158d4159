"""Worlds whose ranks are threads of this process: many ranks and nodes, quickly, on few cores.

`run_ranks(nodes, function)` calls ``function(world)`` on one thread a rank and returns the results in rank order;
`on_threads` does so with the communicator of all ranks.
"""

import functools
import itertools
import operator
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from himach.ranks.communicator import World

T = TypeVar("T")
TIMEOUT = 120  # seconds until ranks that wait for one another fail
#: What memory holds that nobody has written to.
NOISE = np.uint64(2**63 + 1)


def add(source: Any, target: Any) -> None:
    np.add(target, source, out=target)


class Request:
    """What is under way; `wait` ends it."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class Group:
    """What the ranks of one communicator share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)
        self.slots: list[Any] = [None] * size
        self.mail: defaultdict[tuple[int, int, int], SimpleQueue[Any]] = defaultdict(SimpleQueue)


class ThreadComm:
    """A communicator of threads."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.size = len(group.slots)
        self.opened: defaultdict[tuple[int, int], deque[Any]] = defaultdict(deque)

    def barrier(self) -> None:
        self.group.barrier.wait()

    def allgather(self, sendobj: Any) -> list[Any]:
        self.group.slots[self.rank] = sendobj
        self.group.barrier.wait()
        everything = list(self.group.slots)
        self.group.barrier.wait()
        return everything

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self.allgather(obj)[root]

    def gather(self, sendobj: Any, root: int = 0) -> Any:
        found = self.allgather(sendobj)
        return found if self.rank == root else None

    def allreduce(self, sendobj: Any, op: Any = operator.add) -> Any:
        return functools.reduce(op, self.allgather(sendobj))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Any:
        self.group.mail[self.rank, dest, tag].put(buf.copy())
        return Request(lambda: None)

    def Irecv(self, buf: Any, source: int, tag: int) -> Any:
        message = self.awaited(source, tag)

        def take() -> None:
            buf[...] = message.popleft()

        return Request(take)

    def awaited(self, source: int, tag: int) -> deque[Any]:
        """Return the messages of a rank that have come and were not received, the next one among them."""
        mail = self.group.mail[source, self.rank, tag]
        waiting = self.opened[source, tag]
        if not waiting:
            waiting.append(mail.get(timeout=TIMEOUT))
        return waiting

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Callable[[Any, Any], None] | None = None) -> None:
        total = None
        for words in self.allgather(np.ascontiguousarray(sendbuf).copy()):
            if total is None:
                total = words.copy()
            else:
                (op or add)(words, total)
        recvbuf[...] = total
        self.barrier()


class UserOp:
    """A reduction made of a function over the addresses of buffers."""

    alive = 0
    lock = threading.Lock()

    def __init__(self, function: Callable[[Any, Any, Any], None]) -> None:
        self.function = function
        with UserOp.lock:
            UserOp.alive += 1

    def __call__(self, source: Any, target: Any) -> None:
        # An MPI library may reduce any run of elements at a time: an odd split shows elements that are not complete.
        cut = len(source) // 3
        for part in (slice(0, cut), slice(cut, None)):
            if len(source[part]):
                self.function(self.buffer(source[part]), self.buffer(target[part]), None)

    @staticmethod
    def buffer(array: Any) -> Any:
        return SimpleNamespace(address=array.ctypes.data, nbytes=array.nbytes)

    def Free(self) -> None:
        with UserOp.lock:
            UserOp.alive -= 1


def world_of(rank: int, nodes: Sequence[str], groups: dict[Any, Group]) -> World:
    """Return the world as `rank` sees it; ``nodes[r]`` is the name of rank r's node."""
    names = tuple(sorted(set(nodes)))
    name = nodes[rank]
    here = [r for r, other in enumerate(nodes) if other == name]
    node = ThreadComm(groups[name], here.index(rank))
    leaders = ThreadComm(groups["leaders"], names.index(name)) if node.rank == 0 else None
    comm = ThreadComm(groups["all"], rank)
    return World(
        comm=comm, node=node, leaders=leaders, nodes=names, name=name,
        node_ranks=tuple(tuple(r for r, other in enumerate(nodes) if other == one) for one in names), bor=lambda source,
        target: np.bitwise_or(target, source, out=target), sum=add, make_op=UserOp,
        share_words=lambda n: node.bcast(np.full(n, NOISE) if node.rank == 0 else None),
        make_counter=lambda: node.bcast(itertools.count() if node.rank == 0 else None),
        await_message=lambda source, tag: len(comm.awaited(source, tag)[0]),
    )  # fmt: skip


def run_ranks(nodes: Sequence[str], function: Callable[[World], T]) -> list[T]:
    """Call `function` on one thread a rank; raise the first error of any rank."""
    groups: dict[Any, Group] = {name: Group(list(nodes).count(name)) for name in set(nodes)}
    groups["leaders"] = Group(len(set(nodes)))
    groups["all"] = Group(len(nodes))
    results: list[Any] = [None] * len(nodes)
    errors: list[BaseException | None] = [None] * len(nodes)

    def run(rank: int) -> None:
        try:
            results[rank] = function(world_of(rank, nodes, groups))
        except BaseException as error:
            errors[rank] = error
            if not isinstance(error, Exception):
                raise
            for group in groups.values():
                group.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    raised = [error for error in errors if error is not None]
    # A rank that waited for one that failed has a broken barrier: not the cause.
    causes = [error for error in raised if not isinstance(error, threading.BrokenBarrierError)]
    if causes or raised:
        raise (causes or raised)[0]
    return results


def on_threads(size: int, function: Callable[[ThreadComm], T]) -> list[T]:
    return run_ranks(["node"] * size, lambda world: function(world.comm))
