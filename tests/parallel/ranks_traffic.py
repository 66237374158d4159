"""What ranks count of their calls of MPI, over any number of them."""

import operator
import pickle
from copy import copy

import numpy as np
import pytest
from mpi4py import MPI

from himach.parallel import mpi

VALUES = [{"of": rank} for rank in range(MPI.COMM_WORLD.size)]
CALLS = {
    "bcast": lambda comm, value: comm.bcast(value if comm.rank == 0 else None) == VALUES[0],
    "the last one's bcast": lambda comm, value: comm.bcast(value, root=comm.size - 1) == VALUES[-1],
    "gather": lambda comm, value: comm.gather(value) == (None if comm.rank else VALUES),
    "allgather": lambda comm, value: comm.allgather(value) == VALUES,
    "sum": lambda comm, value: comm.allreduce(comm.rank) == sum(range(comm.size)),
    "in order": lambda comm, value: comm.allreduce([comm.rank], operator.add) == list(range(comm.size)),
    "least": lambda comm, value: comm.allreduce(comm.rank, op=min) == 0,
}


def test_how_a_user_has_objects_pickled_is_left():
    loaded = []

    def loads(data):
        loaded.append(len(data))
        return pickle.loads(data)

    MPI.pickle.__init__(pickle.dumps, loads)
    try:
        world = mpi.connect()  # the first of this process
        world.comm.allgather(VALUES[world.comm.rank])
        loaded.clear()
        assert MPI.COMM_WORLD.allgather(VALUES[world.comm.rank]) == VALUES
        assert loaded
    finally:
        MPI.pickle.__init__()


@pytest.mark.parametrize("name", CALLS)
def test_objects_come_and_are_counted(name):
    world = mpi.connect()
    before = copy(world.traffic)
    assert CALLS[name](world.comm, VALUES[world.comm.rank])
    done = world.traffic.since(before)
    assert (done.collectives, done.messages) == (1, 0)
    everyone = np.empty(world.comm.size, np.int64)
    MPI.COMM_WORLD.Allgather(np.array([done.received]), everyone)
    assert sum(everyone > 0) >= world.comm.size - 1 or name == "gather"
    assert name != "gather" or everyone[0] > 0
