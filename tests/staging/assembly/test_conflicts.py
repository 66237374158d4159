"""Slices that are lost, malformed, from before a restart, or of somebody else: what is said of them, and done."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest
from support.cache_data import stage_on_nodes
from support.ranks import mpiexec

import himach
from himach.io.store.store import Store, StoreConflictError
from himach.ranks.communicator import alone
from himach.staging.assembly.assemble import assemble

ATOMS, HALF = 1000, 500
FIRST_HALF = np.random.default_rng(0).permutation(ATOMS)[:HALF]


def positions(number):
    return np.random.default_rng(number).uniform(0, 50, (HALF, 3)).astype(np.float32)


def writer(place, rank=0, **options):
    return himach.Writer("run7", ATOMS, cache=place, rank=rank, identity="simulation", **options)


def push(writer, numbers, ids=FIRST_HALF, more=0.0):
    for number in numbers:
        writer.push_slice(number, ids, positions(number) + np.float32(more), time=number)


def test_a_restarted_rank_finds_its_slices_put_together(tmp_path):
    with writer(tmp_path, durable=True) as pushing:
        push(pushing, range(3))
    rest = np.setdiff1d(np.arange(ATOMS), FIRST_HALF)
    with writer(tmp_path, durable=True) as pushing:
        push(pushing, range(3))  # once more, and nothing of it is known to be on disk yet
        with writer(tmp_path, rank=1) as second:
            push(second, range(3), rest)
        assert assemble(alone(), Store(tmp_path), "run7").frames == 3
        pushing.flush()


def test_slices_that_are_not_of_the_frame_that_is_there_are_told(tmp_path):
    def both(more):
        for rank, ids in enumerate((FIRST_HALF, np.setdiff1d(np.arange(ATOMS), FIRST_HALF))):
            with writer(tmp_path, rank=rank) as pushing:
                push(pushing, range(3), ids, more)

    both(0)
    assert assemble(alone(), Store(tmp_path), "run7").frames == 3
    both(1)
    done = assemble(alone(), Store(tmp_path), "run7")
    assert done.frames == 0
    assert sorted(done.absent) == [0, 1, 2]
    assert "not those of the frame that is there" in done.absent[0]


def test_slices_under_the_name_of_a_staged_trajectory_are_refused(tmp_path):
    with writer(tmp_path) as pushing:
        push(pushing, [0], np.arange(HALF))
    with himach.Writer("run7", ATOMS, cache=tmp_path, rank=1, identity="simulation") as pushing:
        push(pushing, [0], np.arange(HALF) + HALF)
    Store(tmp_path).dataset("run7", b"staged").attach("origin.json", b"{}")  # as somebody stages meanwhile
    with pytest.raises(StoreConflictError, match="evict"):
        assemble(alone(), Store(tmp_path), "run7")
    assert Store(tmp_path).generations("run7") == [b"staged"]


def test_slices_of_nothing_are_passed_over(tmp_path):
    store = Store(tmp_path)
    with writer(tmp_path) as pushing:
        push(pushing, [0])
    strange = store.dataset("run7 [slices]", b"slices of rank 0, 0 atoms, launch 0000000001, mark 0000000000000000\n")
    strange.write(0, 0.0, None, np.zeros((1, 3), np.float32), native=True)
    strange.close()
    assert assemble(alone(), store, "run7").frames == 0


def test_simulations_on_two_nodes_are_not_mixed(tmp_path):
    def push_all(node, identity, frames, value):
        for rank in range(2):
            with himach.Writer("run7", 100, cache=tmp_path / node, rank=rank, identity=identity) as pushing:
                for number in frames:
                    ids = np.arange(50) + 50 * rank
                    pushing.push_slice(number, ids, np.full((50, 3), value, np.float32), time=number)

    words = ["stage", "run7", "--assemble"]
    push_all("n", "first", range(4), 0)
    stage_on_nodes(tmp_path, ["n", "m"], *words, code=0)
    push_all("m", "second", range(8), 1000)
    done = stage_on_nodes(tmp_path, ["n", "m"], *words)
    assert done.returncode and all(word in done.stderr for word in ("'first'", "'second'", "evict")), done.stderr


def test_a_node_that_fails_while_another_is_slow_ends_both(tmp_path):
    """It raises alone, as the other does not come in time; to go on would leave that one waiting for ever."""
    script = tmp_path / "fails.py"
    script.write_text(
        textwrap.dedent("""
        import os, threading
        rank = int(os.environ["PMI_RANK"])
        import numpy as np
        import himach
        from himach.io.store.quota import open_store
        from himach.io.store.store import StoreFullError
        from himach.ranks import collective
        from himach.ranks.mpi import connect
        from himach.staging.assembly.assemble import assemble_pushed
        from himach.staging.assembly.target import FrameWriter

        collective.FAILURE_SECONDS = 0.5
        world = connect()
        with himach.Writer("run7", 100, rank=rank) as writer:
            for number in range(6):
                writer.push_slice(number, np.arange(50) + 50 * rank, np.zeros((50, 3), np.float32), time=number)
        world.comm.barrier()

        def write(self, *arguments):
            if rank == 0:
                raise StoreFullError("no room on this node")
            threading.Event().wait()  # longer than the other waits

        FrameWriter.write = write
        print(assemble_pushed(world, open_store(), "run7"))
        world.comm.barrier()
        """)
    )
    done = mpiexec("nm", [sys.executable, str(script)], disks=tmp_path, timeout=60)
    assert done.returncode != 0
    assert "no room on this node" in done.stderr
