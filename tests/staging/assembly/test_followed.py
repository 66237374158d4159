"""A launch that was followed by another stays so when all slices of the later one have become frames."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
from support.ranks import mpiexec

import himach
from himach.io.push.held_slices import find_slices
from himach.io.store.store import Store
from himach.ranks.communicator import alone
from himach.staging.assembly.assemble import assemble
from himach.staging.assembly.rounds import Rounds

from .test_launches import launches, push, put_together

GO = Rounds.run


def launch(place, name, numbers):
    for rank in (0, 1):
        push(place, name, rank, numbers)


def test_what_was_left_aside_stays_aside(tmp_path):
    launch(tmp_path, "1", range(10))
    launch(tmp_path, "2", range(4, 7))
    meant = {**dict.fromkeys(range(4), 1), **dict.fromkeys(range(4, 7), 2)}
    for _ in range(3):
        assert put_together(tmp_path).aside == 7 and launches(tmp_path) == meant
    launch(tmp_path, "3", range(7, 9))
    for _ in range(2):
        assert put_together(tmp_path).aside == 9
        assert launches(tmp_path) == {**meant, **dict.fromkeys((7, 8), 3)}


def test_frames_of_the_later_launch_may_be_farther_apart(tmp_path):
    launch(tmp_path, "1", range(20))
    launch(tmp_path, "2", range(10, 31, 10))
    for _ in range(2):
        assert put_together(tmp_path).aside == 11
        assert launches(tmp_path) == {**dict.fromkeys(range(10), 1), **dict.fromkeys((10, 20, 30), 2)}


def test_it_is_known_before_a_frame_is_made(tmp_path, monkeypatch):
    launch(tmp_path, "1", range(10))
    launch(tmp_path, "2", range(4, 7))
    seen = []

    def go(rounds, finder):
        helds = find_slices(Store(tmp_path / "store"), "run7").values()
        seen.append([one.frame for held in helds for one in held.later_launches.values()])
        GO(rounds, finder)

    monkeypatch.setattr(Rounds, "run", go)
    put_together(tmp_path)
    assert seen == [[4], [4]]


def test_a_start_under_the_name_of_an_earlier_one_is_not_left_aside(tmp_path):
    """None of them need say anything of itself."""
    launch(tmp_path, "1", range(6))
    launch(tmp_path, "2", range(4, 7))
    put_together(tmp_path)
    launch(tmp_path, "1", range(7, 10))
    assert put_together(tmp_path).aside is None
    first = dict.fromkeys([*range(4), *range(7, 10)], 1)
    assert launches(tmp_path) == {**first, **dict.fromkeys(range(4, 7), 2)}


def test_nor_where_slices_of_the_earlier_one_are_still_there(tmp_path):
    launch(tmp_path, "1", range(10))
    launch(tmp_path, "2", range(4, 7))
    assert put_together(tmp_path).aside == 7
    launch(tmp_path, "1", range(10, 13))
    assert put_together(tmp_path).aside == 7
    first = dict.fromkeys([*range(4), *range(10, 13)], 1)
    assert launches(tmp_path) == {**first, **dict.fromkeys(range(4, 7), 2)}


# --- Two nodes ------------------------------------------------------------------------------------------------------

TOGETHER = textwrap.dedent("""
    from himach.io.store.quota import open_store
    from himach.ranks.mpi import connect
    from himach.staging.assembly.assemble import assemble
    world = connect()
    done = assemble(world, open_store(), "run7")
    if world.comm.rank == 0:
        print(done.frames, done.aside)
""")


def together(place):
    """Assemble with two ranks a node; return how many frames were made, and from which on slices are left aside."""
    done = mpiexec("nnmm", [sys.executable, "-c", TOGETHER], disks=place)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def by_itself(place, node):
    done = assemble(alone(), Store(place / node), "run7")
    return [str(done.frames), str(done.aside)]


def whole(place, name, frames):
    """Push frames of one atom, those with an even number on node n, others on m."""
    for node, odd in (("n", 0), ("m", 1)):
        if some := [number for number in frames if number % 2 == odd]:
            with himach.Writer("run7", 1, cache=place / node, rank=odd, launch=name) as writer:
                for number in some:
                    writer.push_slice(number, [0], np.full((1, 3), float(name), np.float32), time=number)


def test_a_node_without_slices_of_the_later_launch_learns_of_it(tmp_path):
    whole(tmp_path, "1", range(16))
    whole(tmp_path, "2", [10, 12])  # on node n alone
    assert together(tmp_path) == ["12", "11"]
    assert by_itself(tmp_path, "m") == ["0", "11"]
    assert by_itself(tmp_path, "n") == ["0", "14"]
    assert together(tmp_path) == ["0", "11"]


def test_a_node_whose_slices_are_all_frames_still_knows(tmp_path):
    whole(tmp_path, "1", range(16))
    whole(tmp_path, "2", [10, 12, 14])
    assert by_itself(tmp_path, "n") == ["8", "None"]
    assert find_slices(Store(tmp_path / "n"), "run7") == {}
    for made in ("5", "0"):
        assert together(tmp_path) == [made, "11"]
