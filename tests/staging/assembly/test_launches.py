"""A simulation that died and went on from a checkpoint: its frames are of one launch each, the later one's."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest
from support.commands import himach as command
from support.ranks import mpiexec

import himach
from himach.io.push.held_slices import HeldSlices, find_slices
from himach.io.store.store import Store
from himach.ranks.communicator import alone
from himach.staging.assembly.assemble import assemble

ATOMS = 1000
FIRST = HeldSlices.first_write
HALVES = np.split(np.random.default_rng(0).permutation(ATOMS), 2)

#: Half the atoms each; frame n of a launch has positions of its own, so that who mixes is seen.
SIMULATION = textwrap.dedent("""
    import os, sys
    import numpy as np
    import himach

    launch, first, *lasts = map(int, sys.argv[1:])
    rank = int(os.environ["PMI_RANK"])
    ids = np.split(np.random.default_rng(launch).permutation(1000), 2)[rank]  # atoms are elsewhere after a restart
    writer = himach.Writer("run7", 1000)
    for number in range(first, lasts[rank]):
        positions = (np.arange(1000)[:, None] + 10000 * launch + [number, 0.5, 0.25]).astype(np.float32)
        writer.push_slice(number, ids, positions[ids], time=number)
    writer.flush()
    os._exit(0)  # dies without a word
""")


def simulate(place, *words):
    """Run a launch: its number, its first frame, and the frame at which each rank dies."""
    script = place / "simulation.py"
    script.write_text(SIMULATION)
    done = mpiexec(2, [sys.executable, str(script), *map(str, words)], environ={"HIMACH_CACHE": str(place / "store")})
    assert done.returncode == 0, done.stderr


def launches(place):
    """Which launch made each frame that is there; fails where one is made of two."""
    found = {}
    dataset = Store(place / "store").dataset("run7", b"", create=False)
    for frame in dataset.read(sorted(dataset.native)):
        launch = int(frame.positions[0, 0] // 10000)
        expected = np.arange(ATOMS)[:, None] + 10000 * launch + np.array([frame.number, 0.5, 0.25])
        assert np.array_equal(frame.positions, expected.astype(np.float32)), f"frame {frame.number} is a mixture"
        found[frame.number] = launch
    return found


def put_together(place):
    return assemble(alone(), Store(place / "store"), "run7")


def test_frames_after_a_checkpoint_are_the_later_launch_s(tmp_path):
    simulate(tmp_path, 1, 0, 8, 6)
    simulate(tmp_path, 2, 4, 7, 10)  # from a checkpoint before frame 4; where both end a rank is ahead
    done = put_together(tmp_path)
    assert launches(tmp_path) == {**dict.fromkeys(range(4), 1), **dict.fromkeys(range(4, 7), 2)}
    assert done.aside == 7 and "an earlier launch are left aside from frame 7 on" in str(done)
    simulate(tmp_path, 3, 6, 12, 12)
    done = put_together(tmp_path)
    assert done.aside is None
    assert launches(tmp_path) == {
        **dict.fromkeys(range(4), 1), **dict.fromkeys(range(4, 7), 2), **dict.fromkeys(range(7, 12), 3)
    }  # fmt: skip
    assert "not those of the frame that is there" in done.absent[6]


def test_halves_of_two_launches_make_no_frame(tmp_path):
    """Rank 0 has died before a frame in the first launch, rank 1 in the second: by atoms alone it would be whole."""
    environ = {"HIMACH_CACHE": str(tmp_path / "store")}
    script = tmp_path / "half.py"
    script.write_text(SIMULATION.replace("default_rng(launch)", "default_rng(0)"))
    for launch, lasts in ((1, (6, 5)), (2, (5, 6))):
        words = [sys.executable, str(script), str(launch), "5", *map(str, lasts)]
        assert mpiexec(2, words, environ=environ).returncode == 0
    done = put_together(tmp_path)
    assert done.frames == 0 and done.waiting == 1
    assert Store(tmp_path / "store").generations("run7") == []


def push(place, launch, rank, numbers):
    ids = HALVES[rank]
    with himach.Writer("run7", ATOMS, cache=place / "store", rank=rank, launch=launch) as writer:
        for number in numbers:
            positions = (np.arange(ATOMS)[:, None] + 10000 * int(launch) + [number, 0.5, 0.25]).astype(np.float32)
            writer.push_slice(number, ids, positions[ids], time=number)


def test_frames_behind_a_later_launch_stay_until_it_has_them(tmp_path):
    for rank in (0, 1):
        push(tmp_path, "1", rank, range(10))
    push(tmp_path, "2", 0, range(4, 5))  # has just begun
    assert put_together(tmp_path).aside == 4 and launches(tmp_path) == dict.fromkeys(range(4), 1)
    push(tmp_path, "2", 0, range(5, 12))
    push(tmp_path, "2", 1, range(4, 8))
    assert put_together(tmp_path).aside == 8
    push(tmp_path, "2", 1, range(8, 12))
    assert put_together(tmp_path).aside is None
    assert launches(tmp_path) == {**dict.fromkeys(range(4), 1), **dict.fromkeys(range(4, 12), 2)}
    assert find_slices(Store(tmp_path / "store"), "run7") == {}


def test_launches_of_which_the_order_is_not_known_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(HeldSlices, "first_write", lambda held: None if (old := FIRST(held)) is None else (0, old[1]))
    for launch, numbers in (("1", range(6)), ("2", range(4, 10))):
        for rank in (0, 1):
            push(tmp_path, launch, rank, numbers)
    done = put_together(tmp_path)
    assert done.aside is None and sorted(launches(tmp_path)) == list(range(10))
    assert "not those of the frame that is there" in done.absent[4]


@pytest.mark.parametrize("launch", ["", "one"])
def test_without_a_launcher_launches_are_what_is_said(tmp_path, launch):
    for rank, ids in enumerate(HALVES):
        with himach.Writer("run7", ATOMS, cache=tmp_path / "store", rank=rank, launch=launch) as writer:
            writer.push_slice(0, ids, np.zeros((len(ids), 3), np.float32), time=0)
    assert put_together(tmp_path).frames == 1


def test_slices_of_another_simulation_supersede_nothing(tmp_path):
    for launch in ("one", "two"):
        for rank, ids in enumerate(HALVES):
            options = {"rank": rank, "launch": launch, "identity": launch}
            with himach.Writer("run7", ATOMS, cache=tmp_path / "store", **options) as writer:
                writer.push_slice(0, ids, np.zeros((len(ids), 3), np.float32), time=0)
    with pytest.raises(himach.HimachError, match="evict"):
        put_together(tmp_path)
    assert len(Store(tmp_path / "store").generations("run7 [slices]")) == 4


def test_what_is_left_aside_is_no_success(tmp_path):
    for launch, numbers in (("1", range(7)), ("2", range(4, 6))):
        for rank in (0, 1):
            push(tmp_path, launch, rank, numbers)
    words = ("stage", "run7", "--assemble", "--cache", tmp_path / "store")
    for made in ("6 frames assembled", "0 frames assembled"):
        done = command(*words)
        assert done.returncode == 1 and f"run7: {made}" in done.stderr and "left aside from frame 6 on" in done.stderr
    for rank in (0, 1):
        push(tmp_path, "2", rank, [6])
    assert command(*words).returncode == 0 and launches(tmp_path)[6] == 2
