"""Frames are of one launch each, the later one's; what is said of slices that are lost, malformed or others'."""

import re
import sys
import textwrap

import numpy as np
import pytest
from support.cache_data import stage_on_nodes
from support.commands import himach as command
from support.ranks import mpiexec

import himach
from himach.io.push.held_slices import find_slices
from himach.io.store.store import Store, StoreConflictError
from himach.ranks.communicator import alone
from himach.staging.assemble import Rounds, assemble

ATOMS = 1000
RUN = Rounds.run
HALVES = np.split(np.random.default_rng(0).permutation(ATOMS), 2)


def launches(place):
    """Return the frames by the launch that made them; fail where a frame is made of two."""
    frames = {}
    dataset = Store(place / "store").dataset("run7", b"", create=False)
    for frame in dataset.read(sorted(dataset.native)):
        launch = int(frame.positions[0, 0] // 10000)
        expected = np.arange(ATOMS)[:, None] + 10000 * launch + np.array([frame.number, 0.5, 0.25])
        assert np.array_equal(frame.positions, expected.astype(np.float32)), f"frame {frame.number} is a mixture"
        frames.setdefault(launch, []).append(frame.number)
    return frames


def put_together(place):
    return assemble(alone(), Store(place / "store"), "run7")


def push(place, launch, numbers, ranks=(0, 1)):
    for rank in ranks:
        with himach.Writer("run7", ATOMS, cache=place / "store", rank=rank, launch=launch) as writer:
            for number in numbers:
                positions = (np.arange(ATOMS)[:, None] + 10000 * int(launch) + [number, 0.5, 0.25]).astype(np.float32)
                writer.push_slice(number, HALVES[rank], positions[HALVES[rank]], time=number)


def test_halves_of_two_launches_make_no_frame(tmp_path):
    """Rank 0 has died before a frame in the first launch, rank 1 in the second: by atoms alone it would be whole."""
    for launch, died in (("1", 1), ("2", 0)):
        push(tmp_path, launch, [5], [1 - died])
    done = put_together(tmp_path)
    assert done.frames == 0 and done.waiting == 1
    assert Store(tmp_path / "store").generations("run7") == []


#: What is pushed (launch, numbers, and ranks unless all), then the first frame left aside and the frames by launch.
HISTORIES = {
    "what is left aside stays aside": [
        *(("1", range(10)), ("2", range(4, 7)), *[(7, {1: [*range(4)], 2: [4, 5, 6]})] * 3),
        *(("3", range(7, 9)), *[(9, {1: [*range(4)], 2: [4, 5, 6], 3: [7, 8]})] * 2),
    ],
    "frames of the later launch may be farther apart": [
        *(("1", range(20)), ("2", range(10, 31, 10)), *[(11, {1: [*range(10)], 2: [10, 20, 30]})] * 2),
    ],
    "a start under the name of an earlier one is not left aside": [
        *(("1", range(6)), ("2", range(4, 7)), (None, {1: [*range(4)], 2: [4, 5, 6]})),
        *(("1", range(7, 10)), (None, {1: [0, 1, 2, 3, 7, 8, 9], 2: [4, 5, 6]})),
    ],
    "nor where slices of the earlier one are still there": [
        *(("1", range(10)), ("2", range(4, 7)), (7, {1: [*range(4)], 2: [4, 5, 6]})),
        *(("1", range(10, 13)), (7, {1: [0, 1, 2, 3, 10, 11, 12], 2: [4, 5, 6]})),
    ],
    "nor is it mixed with the earlier one": [
        *(("1", range(2)), ("1", [2], [0]), ("2", range(3, 5)), (None, {1: [0, 1], 2: [3, 4]})),
        *(("1", [2], [1]), (2, {1: [0, 1], 2: [3, 4]}), ("1", [2], [0]), (None, {1: [0, 1, 2], 2: [3, 4]})),
    ],
    "frames behind a later launch stay until it has them": [
        *(("1", range(10)), ("2", range(4, 5), [0]), (4, {1: [*range(4)]})),  # it has just begun
        *(("2", range(5, 12), [0]), ("2", range(4, 8), [1]), (8, {1: [*range(4)], 2: [*range(4, 8)]})),
        *(("2", range(8, 12), [1]), (None, {1: [*range(4)], 2: [*range(4, 12)]})),
    ],
}


@pytest.mark.parametrize("history", HISTORIES)
def test_launches_that_follow_one_another(tmp_path, history):
    for first, *rest in HISTORIES[history]:
        if isinstance(first, str):
            push(tmp_path, first, *rest)
        else:
            assert (put_together(tmp_path).aside, launches(tmp_path)) == (first, *rest)
    if history.startswith("frames behind"):
        assert find_slices(Store(tmp_path / "store"), "run7") == {}


def test_later_launches_are_known_before_a_frame_is_made(tmp_path, monkeypatch):
    push(tmp_path, "1", range(10))
    push(tmp_path, "2", range(4, 7))
    first_frames = []

    def run(rounds):
        kinds = find_slices(Store(tmp_path / "store"), "run7").values()
        first_frames.append([slices.superseded for slices in kinds if slices.launch == 1])
        RUN(rounds)

    monkeypatch.setattr(Rounds, "run", run)
    put_together(tmp_path)
    assert first_frames == [[4], [4]]


def push_zeros(place, launch, **options):
    for rank, ids in enumerate(HALVES):
        with himach.Writer("run7", ATOMS, cache=place / "store", rank=rank, launch=launch, **options) as writer:
            writer.push_slice(0, ids, np.zeros((len(ids), 3), np.float32), time=0)


@pytest.mark.parametrize("launch", ["", "one"])
def test_without_a_launcher_launches_are_what_is_said(tmp_path, launch):
    push_zeros(tmp_path, launch)
    assert put_together(tmp_path).frames == 1


def test_slices_of_another_simulation_supersede_nothing(tmp_path):
    for launch in ("one", "two"):
        push_zeros(tmp_path, launch, identity=launch)
    with pytest.raises(himach.HimachError, match="evict"):
        put_together(tmp_path)
    assert len(Store(tmp_path / "store").generations("run7 [slices]")) == 4


def test_what_is_left_aside_is_no_success(tmp_path):
    push(tmp_path, "1", range(7))
    push(tmp_path, "2", range(4, 6))
    words = ("stage", "run7", "--assemble", "--cache", tmp_path / "store")
    for made in ("6 frames assembled", "0 frames assembled"):
        done = command(*words, code=1)
        assert f"run7: {made}" in done.stderr and "left aside from frame 6 on" in done.stderr
    push(tmp_path, "2", [6])
    command(*words, code=0)
    assert launches(tmp_path)[2] == [4, 5, 6]


# --- Two nodes ------------------------------------------------------------------------------------------------------


def together(place):
    """Assemble with two ranks a node; return how many frames were made, and from which on slices are left aside."""
    done = stage_on_nodes(place, "nnmm", "stage", "run7", "--assemble")
    made, aside = (re.search(words, done.stdout + done.stderr) for words in (r"(\d+) frames a", r"from frame (\d+) on"))
    assert made is not None, done.stderr
    return [made[1], "None" if aside is None else aside[1]]


def by_itself(place, node):
    done = assemble(alone(), Store(place / node), "run7")
    return [str(done.frames), str(done.aside)]


def push_whole(place, name, frames):
    """Push frames of one atom, those with an even number on node n, others on m."""
    for node, odd in (("n", 0), ("m", 1)):
        if numbers := [number for number in frames if number % 2 == odd]:
            with himach.Writer("run7", 1, cache=place / node, rank=odd, launch=name) as writer:
                for number in numbers:
                    writer.push_slice(number, [0], np.full((1, 3), float(name), np.float32), time=number)


def test_a_node_without_slices_of_the_later_launch_learns_of_it(tmp_path):
    push_whole(tmp_path, "1", range(16))
    push_whole(tmp_path, "2", [10, 12])  # on node n alone
    assert together(tmp_path) == ["12", "11"]
    assert by_itself(tmp_path, "m") == ["0", "11"]
    assert by_itself(tmp_path, "n") == ["0", "14"]
    assert together(tmp_path) == ["0", "11"]


def test_a_node_whose_slices_are_all_frames_still_knows(tmp_path):
    push_whole(tmp_path, "1", range(16))
    push_whole(tmp_path, "2", [10, 12, 14])
    assert by_itself(tmp_path, "n") == ["8", "None"]
    assert find_slices(Store(tmp_path / "n"), "run7") == {}
    for made in ("5", "0"):
        assert together(tmp_path) == [made, "11"]


def test_nodes_that_disagree_leave_nothing_aside(tmp_path):
    push_whole(tmp_path, "1", [0, 2])
    push_whole(tmp_path, "2", [1, 2, 3, 4])
    push_whole(tmp_path, "1", [3, 5])
    assert together(tmp_path) == ["6", "None"]


HALF = 500
FIRST_HALF, SECOND_HALF = HALVES


def positions(number):
    return np.random.default_rng(number).uniform(0, 50, (HALF, 3)).astype(np.float32)


def half_writer(place, rank=0, **options):
    return himach.Writer("run7", ATOMS, cache=place, rank=rank, identity="simulation", **options)


def push_half(writer, numbers, ids=FIRST_HALF, more=0.0):
    for number in numbers:
        writer.push_slice(number, ids, positions(number) + np.float32(more), time=number)


def test_a_restarted_rank_finds_its_slices_put_together(tmp_path):
    with half_writer(tmp_path, durable=True) as pushing:
        push_half(pushing, range(3))
    with half_writer(tmp_path, durable=True) as pushing:
        push_half(pushing, range(3))  # once more, and nothing of it is known to be on disk yet
        with half_writer(tmp_path, rank=1) as second:
            push_half(second, range(3), SECOND_HALF)
        assert assemble(alone(), Store(tmp_path), "run7").frames == 3
        pushing.flush()


def test_slices_that_are_not_of_the_frame_that_is_there_are_told(tmp_path):
    def both(more):
        for rank, ids in enumerate(HALVES):
            with half_writer(tmp_path, rank=rank) as pushing:
                push_half(pushing, range(3), ids, more)

    both(0)
    assert assemble(alone(), Store(tmp_path), "run7").frames == 3
    both(1)
    done = assemble(alone(), Store(tmp_path), "run7")
    assert done.frames == 0
    assert sorted(done.absent) == [0, 1, 2]
    assert "not those of the frame that is there" in done.absent[0]


def test_slices_under_the_name_of_a_staged_trajectory_are_refused(tmp_path):
    with half_writer(tmp_path) as pushing:
        push_half(pushing, [0], np.arange(HALF))
    with himach.Writer("run7", ATOMS, cache=tmp_path, rank=1, identity="simulation") as pushing:
        push_half(pushing, [0], np.arange(HALF) + HALF)
    Store(tmp_path).dataset("run7", b"staged").attach("origin.json", b"{}")  # as somebody stages meanwhile
    with pytest.raises(StoreConflictError, match="evict"):
        assemble(alone(), Store(tmp_path), "run7")
    assert Store(tmp_path).generations("run7") == [b"staged"]


def test_slices_of_nothing_are_passed_over(tmp_path):
    store = Store(tmp_path)
    with half_writer(tmp_path) as pushing:
        push_half(pushing, [0])
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
        from himach.staging.assemble import assemble_pushed
        from himach.staging import assemble as assembling

        collective.FAILURE_SECONDS = 0.5
        world = connect()
        with himach.Writer("run7", 100, rank=rank) as writer:
            for number in range(6):
                writer.push_slice(number, np.arange(50) + 50 * rank, np.zeros((50, 3), np.float32), time=number)
        world.comm.barrier()

        def write(*arguments):
            if rank == 0:
                raise StoreFullError("no room on this node")
            threading.Event().wait()  # longer than the other waits

        assembling.write_frames = write
        print(assemble_pushed(world, open_store(), "run7"))
        world.comm.barrier()
        """)
    )
    done = mpiexec("nm", [sys.executable, str(script)], disks=tmp_path, timeout=60)
    assert done.returncode != 0
    assert "no room on this node" in done.stderr
