"""Ranks over MPI, any number of them: memory they share, who waits, progress."""

import io
import itertools
import os
import pickle
import re
import time

import numpy as np
import pytest
from mpi4py import MPI

from himach.errors import HimachError, RankError, UsageError
from himach.frame import RawFrame
from himach.ranks import mpi, progress
from himach.ranks.collective import run_collectively
from himach.ranks.progress import Progress
from himach.rows.tables import lead
from himach.staging.replication import exchange

comm = MPI.COMM_WORLD
N = 100_000


def fail_to_open(path, *words, **options):
    raise PermissionError(13, "Permission denied", path)


def open_another(path, *words, **options):
    return os.memfd_create("another")


@pytest.mark.parametrize("open_words", [fail_to_open, open_another])
def test_ranks_that_do_not_see_each_other_are_refused(monkeypatch, open_words):
    """Of another container a rank may see no process, or another one in place of it."""
    world = mpi.connect()
    if world.node.rank == world.node.size - 1:
        monkeypatch.setattr(os, "open", open_words)
    with pytest.raises(RankError, match="do not see each other in /proc"):
        world.share_words(N)


def test_ranks_of_a_node_see_the_same_words():
    world = mpi.connect()
    for n in (N, 0, 2 * N):
        shared = world.share_words(n)
        for rank in range(world.node.size):
            if rank == world.node.rank:
                shared[rank :: world.node.size] = rank
            world.node.barrier()
        assert np.array_equal(shared, np.arange(n, dtype=np.uint64) % world.node.size)
        world.node.barrier()


def test_each_number_of_a_counter_goes_to_one_rank():
    world = mpi.connect()
    counter = world.make_counter()
    numbers = list(itertools.islice(counter, 1000))
    assert numbers == sorted(set(numbers))
    everywhere = [number for own in world.node.allgather(numbers) for number in own]
    assert sorted(everywhere) == list(range(1000 * world.node.size))


@pytest.mark.parametrize("failing", [{0}, {2}, {0, 1, 2}])
def test_what_ranks_say_of_errors_does_not_grow_with_their_number(failing):
    sizes = []

    class Counted:
        def __getattr__(self, name):
            return getattr(comm, name)

        def allreduce(self, value, op=MPI.SUM):
            found = comm.allreduce(value, op)
            sizes.append(len(pickle.dumps(found)))
            return found

    def fail() -> None:
        if comm.rank in failing:
            raise UsageError(1000 * "x")

    with pytest.raises(UsageError, match="x{1000}" if len(failing) == 3 else rf"on rank {min(failing)} of 3"):
        run_collectively(Counted(), fail)
    assert sum(sizes) < 2000


def work() -> None:
    """Take a second of a processor."""
    ended = time.process_time() + 1
    while time.process_time() < ended:
        pass


def test_who_waits_for_the_first_one_takes_no_processor():
    began = time.process_time()
    assert lead(mpi.connect().comm, work) is None
    used = time.process_time() - began
    assert used < 0.2 or comm.rank == 0, f"rank {comm.rank} took {used:.2f} s"


def test_what_the_first_one_raises_all_raise():
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(Exception, match="wrong"):
        lead(mpi.connect().comm, fail)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show(stream, frames, pause=0.0, quiet=False):
    bar = Progress(comm, sum(range(1, comm.size + 1)) * frames, stream, quiet)
    for done in range(1, frames * (comm.rank + 1) + 1):
        time.sleep(pause)
        bar(done)
    bar.finish()
    bar.finish()  # a second time does nothing


def nothing_under_way():
    comm.barrier()
    return not comm.iprobe(tag=progress.COUNT_TAG)


def test_the_bar_ends_at_all_frames_of_all_ranks():
    stream = Terminal()
    show(stream, 50, 0.002)
    total = sum(range(1, comm.size + 1)) * 50
    if comm.rank == 0:
        assert f"{total}/{total}" in stream.getvalue()
        assert "100%" in stream.getvalue()
    else:
        assert stream.getvalue() == ""
    assert nothing_under_way()


def test_the_bar_moves_with_all_ranks():
    """Not with rank 0 alone, with a jump when the others' counts come; once in three tries, as ranks may be held up."""
    jumps = []
    for _ in range(3):
        comm.barrier()
        stream = Terminal()
        show(stream, 30, 0.03)
        shown = sorted({int(count) for count in re.findall(r" (\d+)/", stream.getvalue())})
        jumps.append(max((after - before for before, after in itertools.pairwise(shown)), default=0))
    if comm.rank == 0:
        assert 0 < min(jumps) <= 8 * comm.size, jumps


def test_lines_for_logs(monkeypatch):
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.2)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.2)
    monkeypatch.setattr(progress, "SEND_SECONDS", 0.05)
    stream = io.StringIO()
    show(stream, 100, 0.005)
    if comm.rank == 0:
        lines = stream.getvalue().splitlines()
        total = sum(range(1, comm.size + 1)) * 100
        assert len(lines) >= 3
        assert lines[0].endswith("left")
        assert lines[-1].startswith(f"himach: {total} of {total} frames (100%), ")
        counts = [int(line.split()[1]) for line in lines]
        assert counts == sorted(counts)
    assert nothing_under_way()


def test_short_and_quiet_runs_print_nothing():
    for quiet in (False, True):
        stream = io.StringIO()
        show(stream, 10, quiet=quiet)
        assert stream.getvalue() == ""
        assert nothing_under_way()


def test_a_rank_without_frames_takes_part():
    bar = Progress(comm, 10 * (comm.size - 1), io.StringIO())
    if comm.rank:
        bar(10)
    bar.finish()
    assert nothing_under_way()


def test_a_failed_run_keeps_nobody_waiting_and_disturbs_no_later_one():
    with pytest.raises(ZeroDivisionError), Progress(comm, 100, io.StringIO()) as bar:
        bar(1)
        if comm.rank == comm.size - 1:
            raise ZeroDivisionError
        bar.finish()
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), Progress(comm, 100, io.StringIO()) as bar:
        bar(1)
        raise ZeroDivisionError
    comm.barrier()
    stream = Terminal()
    show(stream, 20, 0.001)
    if comm.rank == 0:
        total = sum(range(1, comm.size + 1)) * 20
        assert f"{total}/{total}" in stream.getvalue()
    assert nothing_under_way()


def test_frames_of_a_failed_exchange_are_not_taken_for_those_of_the_next():
    def read(numbers):
        return [RawFrame(number, 0.0, np.zeros((1, 3), np.float32), None) for number in numbers.tolist()]

    def fail_on_rank_1(numbers):
        if comm.rank == 1:
            raise OSError(5, "Input/output error")
        return read(numbers)

    moves = {(0, 1): np.array([1]), (1, 0): np.array([2])}
    with pytest.raises(HimachError, match="Input/output error"):
        exchange(comm, moves, fail_on_rank_1)
    frames = exchange(comm, {(0, 1): np.array([7])}, read)
    assert [frame.number for frame in frames] == ([7] if comm.rank == 1 else [])


def test_progress_and_collectives_do_not_meet():
    for _ in range(20):
        show(io.StringIO(), 5)
        assert comm.allreduce(1) == comm.size
    assert nothing_under_way()
