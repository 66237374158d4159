"""Memory that the ranks of a node share, over any number of ranks."""

import numpy as np
import pytest

from himach.parallel import mpi

N = 100_000


@pytest.mark.parametrize("left", [None, 0])
def test_ranks_of_a_node_see_the_same_words(monkeypatch, left):
    if left is not None:  # /dev/shm is as small as in a container
        monkeypatch.setattr(mpi, "free_bytes", lambda: left)
    world = mpi.connect()
    for n in (N, 0, 2 * N):
        shared = world.share_words(n)
        assert isinstance(shared, mpi._FileWords) == (left == 0 and n > 0)
        for rank in range(world.node.size):
            if rank == world.node.rank:
                shared.words[rank :: world.node.size] = rank
            world.node.barrier()
        assert np.array_equal(shared.words, np.arange(n, dtype=np.uint64) % world.node.size)
        world.node.barrier()
        shared.close()
        assert len(shared.words) == 0
