"""The world of ranks that MPI knows: the one module that imports mpi4py.

`connect()` initialises MPI, checks that its world is the one the launcher promised, and returns a `World`; `load()`
loads it for processes that are forked afterwards.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from operator import or_
from typing import Any, NoReturn

import numpy as np

from himach.errors import RankError
from himach.parallel import process_exit
from himach.parallel.communicator import OwnWords, SharedWords, Words, World, node_name
from himach.parallel.environment import promised_ranks
from himach.parallel.segments import SHARED, forget_segments, free_bytes
from himach.parallel.traffic import Traffic, counted

#: What is known already, by the nodes of all ranks, so that all ranks know the same.
_worlds: dict[tuple[str, ...], World] = {}


def connect() -> World:
    """Initialise MPI and return the world of all ranks.

    Raises
    ------
    RankError
        If no MPI library can be loaded, if the launcher started several ranks that do not know of each other, or if
        one node name stands for several hosts.
    """
    process_exit.end_with_launcher()
    process_exit.guard_step()
    with _told():
        _initialise()
        from mpi4py import MPI
    comm = MPI.COMM_WORLD
    promised = promised_ranks()
    if comm.size == 1 and promised > 1:
        raise RankError(
            f"the launcher started {promised} ranks, but MPI ({_library(MPI)}) sees {promised} worlds of one rank: "
            "launcher and MPI library do not fit; use the mpiexec of this MPI library, or srun with the --mpi it "
            "speaks (MPICH: --mpi=pmi2, Open MPI: --mpi=pmix; 'srun --mpi=list' shows which there are)"
        )
    if comm.size > 1:
        if not _worlds:
            process_exit.watch_exit(comm, abort)
        process_exit.enter_run(comm)
    # Kept, because a process may run many analyses, and MPI libraries have some thousand communicators at most.
    names = _names(comm)
    world = _worlds.get(names)
    if world is None:
        forget_segments()  # all ranks have answered, so that all are initialised
        world = _worlds[names] = _world(MPI, comm, names)
    return world


def _names(comm: Any) -> tuple[str, ...]:
    """Return the node of each rank; every name travels once, whatever ranks its node has."""
    own = node_name()
    nodes = sorted(comm.allreduce({own}, op=or_))
    indexes = np.empty(comm.size, np.int32)
    comm.Allgather(np.array([nodes.index(own)], np.int32), indexes)
    return tuple(nodes[index] for index in indexes.tolist())


def load() -> str:
    """Load MPI without initialising it, which `connect()` then does in a forked process; return what it says of itself.

    Such a process ends without finalising it: see `himach.launch`.

    Raises
    ------
    RankError
        If no MPI library can be loaded.
    """
    with _told():
        import mpi4py

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    text: str = MPI.Get_library_version()
    return text


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ImportError, RuntimeError) as error:
        raise RankError(
            f"no MPI library could be loaded ({error}); install one with \"pip install 'himach[local]'\", or load the "
            "cluster's MPI module and set MPI4PY_LIBMPI to its library"
        ) from error


def _world(mpi: Any, comm: Any, names: tuple[str, ...]) -> World:
    """Return the world of the ranks of `comm`, which lie on the nodes `names`."""
    name = names[comm.rank]
    nodes = tuple(sorted(set(names)))
    node = comm.Split(nodes.index(name), comm.rank)
    here = node.Split_type(mpi.COMM_TYPE_SHARED)
    apart = comm.allreduce(here.size < node.size, op=mpi.LOR)
    here.Free()
    if apart:
        raise RankError(
            "ranks on different hosts carry one node name; set HIMACH_NODE to a name of its own on every host, "
            "or unset it"
        )
    # Ranks of a node sort leaders by node index, so that leader i speaks for nodes[i].
    leaders = comm.Split(0 if node.rank == 0 else mpi.UNDEFINED, nodes.index(name))
    traffic = Traffic()
    count = counted(mpi, traffic)
    return World(
        comm=count(comm),
        node=count(node),
        leaders=count(leaders) if node.rank == 0 else None,
        nodes=nodes,
        name=name,
        ranks_of=_ranks_of(names, nodes),
        bor=mpi.BOR,
        sum=mpi.SUM,
        make_op=lambda function: mpi.Op.Create(function, commute=True),
        # Pages of shared memory cost several times as much to touch first as a rank's own.
        share_words=OwnWords if node.size == 1 else lambda n: _share_words(n, node, mpi),
        make_counter=lambda: _SharedCounter(node, mpi),
        await_message=lambda source, tag: _await_message(comm, mpi, source, tag),
        library=lambda: _library(mpi),
        traffic=traffic,
    )


def _ranks_of(names: Sequence[str], nodes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each node."""
    found: dict[str, list[int]] = {name: [] for name in nodes}
    for rank, name in enumerate(names):
        found[name].append(rank)
    return tuple(map(tuple, found.values()))


def _await_message(comm: Any, mpi: Any, source: int, tag: int) -> int:
    """Wait for a message; return its words."""
    status = mpi.Status()
    comm.Probe(source, tag, status)
    words: int = status.Get_count(mpi.UINT64_T)
    return words


def _library(mpi: Any) -> str:
    """Return name and version of the MPI library, on one line."""
    first: str = mpi.Get_library_version().splitlines()[0]
    return " ".join(first.rstrip("\0").split())


def _initialise() -> None:
    """Initialise MPI; with MPICH's wheel under SLURM in a thread of its own.

    There (seen with MPICH 5.0.2), ranks publish addresses padded with whatever the heap holds; after heavy imports
    that is longer than SLURM's PMI-2 takes, and MPI_Init fails or hangs. A new thread has a heap and a stack of its
    own, which are still zeros. The way by libfabric pads nothing, but stalls in MPI_Init now and then where ranks
    share processors.
    """
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    if "SLURM_STEP_ID" in os.environ and _has_wheel("mpich"):  # a site's own MPICH knows its network best
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:
            thread.submit(import_module, "mpi4py.MPI").result()
    else:
        mpi = import_module("mpi4py.MPI")
        if not mpi.Is_initialized():  # it was loaded before this process was forked
            mpi.Init_thread(mpi.THREAD_SERIALIZED)


def _has_wheel(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _share_words(n: int, node: Any, mpi: Any) -> SharedWords:
    """Return words in memory of the node: MPI's, or where that has not enough left, a file without a name."""
    small = node.rank == 0 and 8 * n > free_bytes()  # then the first touch would kill the rank
    return _FileWords(n, node) if node.bcast(small) else _SharedWords(n, node, mpi)


class _FileWords:
    """Words in a file in memory that the first rank of the node makes, and others see through its folder in /proc."""

    def __init__(self, n: int, node: Any) -> None:
        own = os.memfd_create("himach-words") if node.rank == 0 else -1
        if own >= 0:
            os.ftruncate(own, max(1, 8 * n))
        process, number = node.bcast((os.getpid(), own))
        try:
            file = own if own >= 0 else os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RankError(
                f"{SHARED} on node {node_name()} has less than the {8 * n / 1e6:.0f} MB left that the node's ranks "
                f"need together, and they do not see each other's files ({error.strerror}); make it larger (docker run "
                f"--shm-size=..., mount -o remount,size=... {SHARED}), or use fewer ranks on a node"
            ) from error
        memory = mmap.mmap(file, max(1, 8 * n))
        node.barrier()  # all have it
        os.close(file)
        self.words: Words = np.frombuffer(memory, dtype=np.uint64, count=n)

    def close(self) -> None:
        self.words = np.empty(0, dtype=np.uint64)  # the memory goes with the last view


class _SharedWords:
    """Words in the node's shared memory."""

    def __init__(self, n: int, node: Any, mpi: Any) -> None:
        self._window = mpi.Win.Allocate_shared(8 * n if node.rank == 0 else 0, 8, comm=node)
        buffer, _ = self._window.Shared_query(0)
        self.words: Words = np.frombuffer(buffer, dtype=np.uint64, count=n)

    def close(self) -> None:
        self.words = np.empty(0, dtype=np.uint64)
        self._window.Free()


class _SharedCounter:
    """A counter in the node's shared memory, advanced by the MPI library's atomic fetch-and-add."""

    def __init__(self, node: Any, mpi: Any) -> None:
        self._mpi = mpi
        self._window = mpi.Win.Allocate_shared(8 if node.rank == 0 else 0, 8, comm=node)
        buffer, _ = self._window.Shared_query(0)
        if node.rank == 0:
            np.frombuffer(buffer, dtype=np.int64)[0] = 0
        node.barrier()
        self._one = np.ones(1, dtype=np.int64)
        self._got = np.empty(1, dtype=np.int64)
        self._window.Lock_all()

    def next(self) -> int:
        self._window.Fetch_and_op(self._one, self._got, 0, 0, self._mpi.SUM)
        self._window.Flush(0)
        return int(self._got[0])

    def close(self) -> None:
        self._window.Unlock_all()
        self._window.Free()


def end_together(code: int) -> NoReturn:
    """End this rank with `code` when all ranks are here (collective).

    They end at the same moment and say so, because a launcher may kill those that are left when one has ended, and then
    report the signal instead of the code.
    """
    from mpi4py import MPI

    process_exit.flush()
    MPI.COMM_WORLD.barrier()
    process_exit.pmi_finalize()
    process_exit.leave(code)


def abort(code: int) -> NoReturn:
    """End every rank at once with `code`."""
    from mpi4py import MPI

    process_exit.say("told")
    process_exit.flush()
    time.sleep(0.2)  # a launcher passes on what was printed as long as ranks live
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # who aborts has said why; the MPI library would say that it does
    MPI.COMM_WORLD.Abort(code)
    process_exit.leave(code, "told")  # the launcher was told and is about to end this rank
