"""Progress over any number of ranks."""

import io
import itertools
import re
import time

import pytest
from mpi4py import MPI

import himach.parallel.progress
from himach.parallel.progress import Progress

comm = MPI.COMM_WORLD


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(stream, frames, pause=0.0, quiet=False):
    progress = Progress(comm, sum(range(1, comm.size + 1)) * frames, stream, quiet)
    for done in range(1, frames * (comm.rank + 1) + 1):
        time.sleep(pause)
        progress(done)
    progress.finish()
    progress.finish()  # a second time does nothing
    return progress


def nothing_under_way():
    comm.barrier()
    return not comm.iprobe(tag=himach.parallel.progress.COUNT_TAG)


def test_the_bar_ends_at_all_frames_of_all_ranks():
    stream = Terminal()
    run(stream, 50, 0.002)
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
        run(stream, 30, 0.03)
        shown = sorted({int(count) for count in re.findall(r" (\d+)/", stream.getvalue())})
        jumps.append(max((after - before for before, after in itertools.pairwise(shown)), default=0))
    if comm.rank == 0:
        assert 0 < min(jumps) <= 8 * comm.size, jumps


def test_lines_for_logs(monkeypatch):
    monkeypatch.setattr(himach.parallel.progress, "FIRST_LINE_SECONDS", 0.2)
    monkeypatch.setattr(himach.parallel.progress, "LINE_SECONDS", 0.2)
    monkeypatch.setattr(himach.parallel.progress, "SEND_SECONDS", 0.05)
    stream = io.StringIO()
    run(stream, 100, 0.005)
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
        run(stream, 10, quiet=quiet)
        assert stream.getvalue() == ""
        assert nothing_under_way()


def test_a_rank_without_frames_takes_part():
    progress = Progress(comm, 10 * (comm.size - 1), io.StringIO())
    if comm.rank:
        progress(10)
    progress.finish()
    assert nothing_under_way()


def test_a_failed_run_keeps_nobody_waiting_and_disturbs_no_later_one():
    with pytest.raises(ZeroDivisionError), Progress(comm, 100, io.StringIO()) as progress:
        progress(1)
        if comm.rank == comm.size - 1:
            raise ZeroDivisionError
        progress.finish()
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), Progress(comm, 100, io.StringIO()) as progress:
        progress(1)
        raise ZeroDivisionError
    comm.barrier()
    stream = Terminal()
    run(stream, 20, 0.001)
    if comm.rank == 0:
        total = sum(range(1, comm.size + 1)) * 20
        assert f"{total}/{total}" in stream.getvalue()
    assert nothing_under_way()


def test_progress_and_collectives_do_not_meet():
    for _ in range(20):
        run(io.StringIO(), 5)
        assert comm.allreduce(1) == comm.size
    assert nothing_under_way()
