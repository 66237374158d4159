"""Schedules of exchange and Zazen on thousands of ranks, and what MPICH's wheel cannot begin with.

What this node sends to the others is counted, and comes back in place of what they would send, as all do alike.
"""

import re
import shlex
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from support import needs
from support.ranks import clean_environment, mpiexec
from support.threads import run_ranks

from himach.engine.pairs.block import Form, by_shard
from himach.engine.shuffle.exchange import Exchange, count_messages
from himach.engine.shuffle.waves import WAVE_BYTES
from himach.engine.stamps import FrameTable
from himach.errors import RankError
from himach.planning import closed_forms as forms
from himach.ranks.communicator import alone, own_words
from himach.ranks.mpi import refuse_misfit
from himach.ranks.process_exit import ranks_of_node
from himach.zazen import InMemory, assign
from himach.zazen.rounds import CHUNK_WORDS

#: Bytes that a rank may hold at a time: its own, and its part of what its node holds.
RANK_BYTES = 250e6


class Mirror:
    """A communicator whose other ranks, on other nodes, do what this one does."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.sent, self.reduced = [], []

    def Isend(self, buf, dest, tag=0):
        self.sent.append((dest, buf.nbytes))
        self.last = buf
        return self

    def Irecv(self, buf, source, tag):
        buf[...] = self.last
        return self

    def wait(self):
        pass

    def awaited(self, source, tag):
        return len(self.last)

    def allgather(self, obj):
        return [obj] * self.size

    def bcast(self, obj, root=0):
        return obj

    def Allreduce(self, sendbuf, recvbuf, op):
        """Others have none of what this node has."""
        self.reduced.append(sendbuf.nbytes)
        recvbuf[...] = sendbuf


def large(world, nodes, here):
    """Return the world of a rank of one of many nodes; `world` has the ranks of this one."""
    each = world.node.size
    comm = Mirror(here * each + world.node.rank, nodes * each)
    return replace(
        world,
        comm=comm,
        leaders=None if world.leaders is None else Mirror(here, nodes),
        nodes=tuple(f"node{i:04}" for i in range(nodes)),
        name=f"node{here:04}",
        node_ranks=tuple(tuple(range(node * each, (node + 1) * each)) for node in range(nodes)),
        await_message=comm.awaited,
    )


def given(rows, seed=0):
    """Return what a rank gives to each."""
    rng = np.random.default_rng(seed)
    columns = {"keys": rng.integers(0, 99, rows), "at": np.arange(rows, dtype=np.uint32), "values": rng.random(rows)}
    table = FrameTable(np.arange(rows), rng.random(rows), rng.random((rows, 6), dtype=np.float32))
    return by_shard(Form.PAIR, 0, columns, 4), table


def exchanged(world, rows, waves=2):
    """Move blocks and tables some times over; return this rank's communicator and what it sent."""
    block, table = given(rows)
    moves, size = Exchange(world), world.comm.size
    for _ in range(waves):
        blocks, tables = moves.move([[copy(block)] for _ in range(size)], [copy(table)] * size)
        for (one,), of in zip(blocks, tables, strict=True):
            assert one.keys.tobytes() == block.keys.tobytes()
            assert of.times.tobytes() == table.times.tobytes()
    return world.comm, moves.sent


def copy(one):
    """Return the same columns, elsewhere."""
    return replace(one, **{name: column.copy() for name, column in one.columns().items()})


def test_4096_ranks_of_512_nodes_send_a_message_for_each_two_nodes():
    nodes, each = 512, 8
    found = run_ranks(["here"] * each, lambda world: exchanged(large(world, nodes, 77), 3, waves=1))
    messages = [len(comm.sent) for comm, _ in found]
    assert nodes * sum(messages) <= 512 * 511
    assert max(messages) == count_messages(nodes, each) == 64
    targets = [dest // each for comm, _ in found for dest, _ in comm.sent]
    assert sorted(targets) == [node for node in range(nodes) if node != 77]
    # What goes to other ranks, and for each two of different nodes where it lies.
    travelled = sum(nbytes for comm, _ in found for _, nbytes in comm.sent)
    given_away = sum(sent for _, sent in found) * (nodes - 1) * each / (nodes * each - 1)
    assert travelled == given_away + (nodes - 1) * each * each * 8


def most_bytes(function):
    """Return the most bytes that were held at a time while a function was called, and what it returned."""
    tracemalloc.start()
    try:
        found = function()
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


def test_memory_of_the_exchange_is_that_of_three_waves():
    """As they leave, joined with others', and as they came; the memory of a node has room to grow."""
    nodes, each = 250, 2
    rows = WAVE_BYTES // 4 // 60 // (nodes * each)
    peak, found = most_bytes(
        lambda: run_ranks(["here"] * each, lambda world: exchanged(large(world, nodes, 9), rows)[1] / 2)
    )
    wave = max(found)
    assert wave > 0.7 * WAVE_BYTES / 4
    assert peak / each < forms.exchange_memory(wave) + 2e6 < RANK_BYTES / 4


@pytest.mark.parametrize("n_held", [0, 3000])
def test_memory_of_zazen_is_that_of_two_bits_a_frame(n_held):
    frames, nodes, each = 10**9, 125, 8
    shared = []

    def share_words(n):
        shared.append(own_words(n))
        return shared[-1]

    here = replace(alone(), node=Mirror(0, each), share_words=share_words)
    world = large(here, nodes, 3)
    some = np.arange(n_held) * (frames // 3000)
    cached = InMemory(some[::2], some[1::2])
    peak, share = most_bytes(lambda: assign(world, cached, range(frames)))
    of_node = shared[0].nbytes
    assert share.size == pytest.approx(frames / nodes + n_held, abs=n_held / nodes + 1)
    assert peak <= forms.zazen_memory(frames, 1) + 1e6
    assert peak - of_node + of_node / each <= forms.zazen_memory(frames, each) + 1e6
    assert forms.zazen_memory(10**9, each) < RANK_BYTES
    # Not more often than chunk by chunk: what is native, whose aliens are open, and two short sums.
    reduced = [nbytes for nbytes in world.leaders.reduced if nbytes > 1000]
    chunks = -(-frames // (64 * CHUNK_WORDS))
    assert len(world.leaders.reduced) <= 4 * chunks + 1
    assert sum(reduced) <= 1.01 * sum(forms.zazen_bytes(frames)) + 16 * chunks


CALL = [sys.executable, "-c", "from himach.ranks.mpi import refuse_misfit; refuse_misfit()"]


def test_a_launcher_that_speaks_another_protocol(monkeypatch):
    refuse_misfit()
    monkeypatch.setenv("PMIX_NAMESPACE", "slurm.pmix.1.0")
    with pytest.raises(RankError, match=r"speaks PMIx, .* use srun --mpi=pmi2, or .*bin/mpiexec"):
        refuse_misfit()
    monkeypatch.setenv("MPI4PY_LIBMPI", "/opt/mpi/lib/libmpi.so")  # what that speaks is not known
    refuse_misfit()


@pytest.mark.parametrize(("ranks", "fits"), [(12, True), (16, False)])
def test_too_little_shared_memory(ranks, fits):
    needs.mount_namespace()
    small = f"mount -t tmpfs -o size=64m none /dev/shm && exec {shlex.join(CALL)}"
    environ = clean_environment(MPI_LOCALNRANKS=str(ranks))
    command = ["unshare", "-m", "sh", "-c", small]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == fits
    assert fits or re.search(r"/dev/shm on node .* or use at most 12 ranks on a node", done.stderr)


@pytest.mark.parametrize(
    ("said", "ranks"), [("4", 4), ("2(x3)", 2), ("4(x2),3", 4), ("3,12(x2),1", 12), ("", 1), ("100(x12)", 100)]
)
def test_ranks_of_a_node(said, ranks):
    assert ranks_of_node({"SLURM_STEP_TASKS_PER_NODE": said}) == ranks
    assert ranks_of_node({"PMI_SIZE": "5"}) == 5


CONTAINER = ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--mount-proc"]
INSIDE = f'if [ "$PMI_RANK" = "$0" ]; then exec "$@"; else shift {len(CONTAINER)}; exec "$@"; fi'
SHARE = """
from himach.ranks import mpi
world = mpi.connect()
shared = world.share_words(2)
shared[world.node.rank] = 5 + world.node.rank
world.node.barrier()
print(shared.tolist())
"""


@pytest.mark.parametrize("inside", [0, 1, None])
def test_ranks_in_several_containers_are_refused_by_name(inside):
    """The number of a process in one container is that of another process in the next."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        needs.skip("the right to begin a container (unshare --user --pid)")
    command = ["sh", "-c", INSIDE, str(inside), *CONTAINER, sys.executable, "-c", SHARE]
    done = mpiexec(2, command, timeout=60, environ={"UCX_TLS": "tcp,self"})
    if inside is None:
        assert (done.returncode, done.stdout) == (0, 2 * "[5, 6]\n"), done.stderr
    else:
        assert done.returncode == 1 and " do not see each other in /proc, and " in done.stderr
