"""Ranks that are threads of this process: what the engine needs of a communicator, for many ranks on few cores."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np

#: Seconds that a rank waits for another.
PATIENCE = 120


class Threads:
    """What `size` ranks share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.board: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=PATIENCE)
        self.mail: defaultdict[tuple[int, int, int], SimpleQueue[bytes]] = defaultdict(SimpleQueue)


class ThreadRank:
    """One rank's communicator."""

    def __init__(self, shared: Threads, rank: int) -> None:
        self._shared = shared
        self.rank = rank
        self.size = shared.size

    def barrier(self) -> None:
        self._shared.barrier.wait()

    def allgather(self, sendobj: Any) -> list[Any]:
        self._shared.board[self.rank] = sendobj
        self.barrier()
        found = list(self._shared.board)
        self.barrier()
        return found

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self.allgather(obj)[root]

    def allreduce(self, sendobj: Any) -> Any:
        first, *others = self.allgather(sendobj)
        return sum(others, first)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any) -> None:
        recvbuf[:] = sum(self.allgather(sendbuf.copy()))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        rows = self.allgather(sendbuf.copy())
        recvbuf[...] = [row[self.rank] for row in rows]

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Any:
        self._shared.mail[self.rank, dest, tag].put(bytes(buf[0]))
        return _Done(lambda: None)

    def Irecv(self, buf: Any, source: int, tag: int) -> Any:
        mail = self._shared.mail[source, self.rank, tag]

        def take() -> None:
            data = mail.get(timeout=PATIENCE)
            buf[0][: len(data)] = np.frombuffer(data, np.uint8)

        return _Done(take)


class _Done:
    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


def on_threads(size: int, function: Callable[[ThreadRank], Any]) -> list[Any]:
    """Call a function on each rank; return what it returned, by rank."""
    shared = Threads(size)
    found: list[Any] = [None] * size
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = function(ThreadRank(shared, rank))
        except BaseException as error:
            failed.append(error)
            shared.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise next((error for error in failed if not isinstance(error, threading.BrokenBarrierError)), failed[0])
    return found
