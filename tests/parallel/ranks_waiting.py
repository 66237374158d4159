"""Ranks that wait for the first one, at any number of ranks."""

import time

import pytest

from himach.parallel.collective import heard_from_first
from himach.parallel.mpi import connect
from himach.rows.team import Team

world = connect()
comm = world.comm


def work() -> None:
    """Take a second of a processor."""
    ended = time.process_time() + 1
    while time.process_time() < ended:
        pass


def test_the_others_hear_what_the_first_one_says():
    for value in ("one", None, [2, 3]):
        assert heard_from_first(comm, value if comm.rank == 0 else "not this") == value


def test_who_waits_for_the_first_one_takes_no_processor():
    began = time.process_time()
    assert Team(world, {}).lead(work) is None
    used = time.process_time() - began
    assert used < 0.2 or comm.rank == 0, f"rank {comm.rank} took {used:.2f} s"


def test_what_the_first_one_raises_all_raise():
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(Exception, match="wrong"):
        Team(world, {}).lead(fail)
