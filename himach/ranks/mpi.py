"""MPI's world of ranks, `connect()`, and `load()` for processes that fork ranks: the only module with mpi4py."""

import fcntl
import itertools
import mmap
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import or_
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from himach.errors import RankError
from himach.ranks import process_exit
from himach.ranks.communicator import Words, World, node_name, own_words
from himach.ranks.process_exit import promised_ranks, ranks_of_node
from himach.ranks.segments import SHARED, forget_segments, shared_bytes

#: Bytes of shared memory that MPICH's wheel (5.0.2) takes at start, for a node and for each rank: 11.31 MB for 2
#: ranks, 22.09 for 4, 43.66 for 8, 86.78 for 16, which die by SIGBUS with less.
NODE_BYTES, RANK_BYTES = 0.6e6, 5.4e6
#: Known worlds by the nodes of all ranks, so that all ranks know the same ones.
_worlds: dict[tuple[str, ...], World] = {}


def connect() -> World:
    """Initialise MPI and return the world of all ranks."""
    process_exit.end_with_launcher()
    process_exit.guard_step()
    refuse_misfit()
    with _explain_missing_library():
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
    # Keep it: a process may run many analyses, and MPI libraries have some thousand communicators at most.
    names = tuple(comm.allgather(node_name()))
    world = _worlds.get(names)
    if world is None:
        forget_segments()  # all ranks have answered, so all are initialised
        world = _worlds[names] = _world(MPI, comm, names)
    return world


def refuse_misfit() -> None:
    """Raise RankError where MPICH's wheel cannot start and would exit without a helpful message."""
    text = ""
    if "PMIX_NAMESPACE" in os.environ:
        text = (
            "the launcher speaks PMIx, which the wheel of MPICH here does not: use srun --mpi=pmi2, or outside "
            f"of srun {Path(sys.executable).with_name('mpiexec')}; mpiexec of Open MPI takes the wheel of Open MPI"
        )
    ranks, size = ranks_of_node(), shared_bytes()
    if ranks > 1 and NODE_BYTES + ranks * RANK_BYTES > size:
        text = (
            f"{SHARED} on node {node_name()} has {size / 1e6:.0f} MB, and MPICH needs {RANK_BYTES / 1e6:.1f} MB for a "
            f"rank, of which there are {ranks}: make it larger (docker run --shm-size=1g, mount -o "
            f"remount,size=1g {SHARED}), or use at most {int((size - NODE_BYTES) // RANK_BYTES)} ranks on a node"
        )
    if text and "MPI4PY_LIBMPI" not in os.environ and _has_wheel("mpich"):
        raise RankError(text)


def load() -> str:
    """Load MPI, which `connect()` then initialises in forked processes; return its version text."""
    with _explain_missing_library():
        import mpi4py

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    text: str = MPI.Get_library_version()
    return text


@contextmanager
def _explain_missing_library() -> Iterator[None]:
    try:
        yield
    except (ImportError, RuntimeError) as error:
        raise RankError(
            f"no MPI library could be loaded ({error}); install one with \"pip install 'himach[local]'\", or load the "
            "cluster's MPI module and set MPI4PY_LIBMPI to its library"
        ) from error


def _world(mpi: Any, comm: Any, names: tuple[str, ...]) -> World:
    """Return the world of the ranks of `comm`; `names` are their nodes."""
    name = names[comm.rank]
    nodes = tuple(sorted(set(names)))
    node = comm.Split(nodes.index(name), comm.rank)
    os.close(_share_file(1, node))  # raises where ranks cannot share memory
    # Order leaders by node index, so that leader i is that of nodes[i].
    leaders = comm.Split(0 if node.rank == 0 else mpi.UNDEFINED, nodes.index(name))
    return World(
        comm=comm,
        node=node,
        leaders=leaders if node.rank == 0 else None,
        nodes=nodes,
        name=name,
        node_ranks=_group_ranks(names, nodes),
        bor=mpi.BOR,
        sum=mpi.SUM,
        make_op=lambda function: mpi.Op.Create(function, commute=True),
        # The first touch of a shared page costs several times that of a private one.
        share_words=own_words if node.size == 1 else lambda n: _share_words(n, node),
        make_counter=itertools.count if node.size == 1 else lambda: _count(_share_file(8, node)),
        await_message=lambda source, tag: _await_message(comm, mpi, source, tag),
        library=lambda: _library(mpi),
    )


def _group_ranks(names: Sequence[str], nodes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each node."""
    ranks: dict[str, list[int]] = {name: [] for name in nodes}
    for rank, name in enumerate(names):
        ranks[name].append(rank)
    return tuple(map(tuple, ranks.values()))


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
    """Initialise MPI; with MPICH's wheel under SLURM in a thread of its own."""
    # There (seen with MPICH 5.0.2) ranks publish addresses padded with whatever the heap holds. After heavy imports the
    # padding exceeds what SLURM's PMI-2 takes, and MPI_Init fails or hangs. A new thread has a heap and a stack of its
    # own, still zeros. With libfabric nothing is padded, but MPI_Init sometimes stalls where ranks share processors.
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    if "SLURM_STEP_ID" in os.environ and _has_wheel("mpich"):  # not a site's own MPICH, which knows its network best
        with ThreadPoolExecutor(1) as thread:
            thread.submit(import_module, "mpi4py.MPI").result()
    else:
        mpi = import_module("mpi4py.MPI")
        if not mpi.Is_initialized():  # loaded before this process was forked
            mpi.Init_thread(mpi.THREAD_SERIALIZED)


def _has_wheel(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _share_file(size: int, node: Any) -> int:
    """Return a file in memory, of zeros, that the ranks of a node have open, each for itself (collective)."""
    own, place = -1, ("", ("", 0, 0))
    if node.rank == 0:
        own = os.memfd_create("himach-words")
        os.ftruncate(own, size)
        place = f"/proc/{os.getpid()}/fd/{own}", _identity(own)
    path, identity = node.bcast(place)
    if node.rank != 0:
        with suppress(OSError):
            own = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    other = own < 0 or _identity(own) != identity  # in this container another process may have that pid
    if node.allreduce(other, op=or_):
        raise RankError(
            f"ranks on node {node_name()} do not see each other in /proc, and share memory by files of each other: "
            "start them in one container, or one rank a node (--ntasks-per-node=1); hosts with one node name need "
            "HIMACH_NODE, a name of its own on every host"
        )
    return own


def _identity(file: int) -> tuple[str, int, int]:
    status = os.fstat(file)
    return Path("/proc/sys/kernel/random/boot_id").read_text(), status.st_dev, status.st_ino


def _share_words(n: int, node: Any) -> "Words":
    """Return words that the ranks of a node share (collective); their memory ends with the last view, on any rank."""
    size = max(1, 8 * n)
    file = _share_file(size, node)
    memory = mmap.mmap(file, size)
    os.close(file)
    return np.frombuffer(memory, dtype=np.uint64, count=n)


def _count(descriptor: int) -> Iterator[int]:
    """Yield numbers of a counter that one rank at a time advances; the kernel takes the lock from one that dies."""
    with open(descriptor, "r+b", buffering=0) as file:
        while True:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                number = int.from_bytes(os.pread(descriptor, 8, 0), "little")
                os.pwrite(descriptor, (number + 1).to_bytes(8, "little"), 0)
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)
            yield number


def end_together(code: int) -> NoReturn:
    """End this rank with `code` when all ranks are here: a launcher kills the rest when one has ended."""
    from mpi4py import MPI

    process_exit.flush()
    MPI.COMM_WORLD.barrier()
    process_exit.pmi_finalize()
    process_exit.exit_process(code)


def abort(code: int) -> NoReturn:
    """End every rank at once with `code`."""
    from mpi4py import MPI

    process_exit.say("told")
    process_exit.flush()
    time.sleep(0.2)  # a launcher passes on output while ranks live
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the reason is printed; silence the MPI library's message
    MPI.COMM_WORLD.Abort(code)
    process_exit.exit_process(code, "told")  # the launcher is about to end this rank
