"""What holds of every source of frames: `FrameSourceTests`, and of every cache `CachedFramesTests`; tests inherit them.

A class that inherits them gives a fixture `source`, which has frames 0 to `N_FRAMES` - 1 as `make_frame` makes them: in
a cache, the odd ones as aliens, all others as natives.
"""

import numpy as np
import pytest
from MDAnalysis.lib.formats.libmdaxdr import XTCFile

from himach.errors import UsageError
from himach.frame import FIELDS, POSITIONS, VELOCITIES
from himach.io.frame_source import ReadOptions
from himach.io.store.bodhi import MAX_NUMBER

N_FRAMES = 20
N_ATOMS = 9000  # blocks of checksums have 4096
BOX = np.array([90, 80, 70, 90, 90, 90], np.float32)
NOTE = b"n" * (256 << 10)  # an attachment, of two parts as servers give them
NATIVES = set(range(0, N_FRAMES, 2))
ALIENS = set(range(1, N_FRAMES, 2))


def make_positions(number):
    """Positions on the grid of an XTC, Å."""
    return (np.random.default_rng(number).integers(0, 9000, (N_ATOMS, 3)) / np.float32(100)).astype(np.float32)


def make_frame(number):
    """Return number, time, box, positions and velocities, as `Dataset.write` takes them."""
    positions = make_positions(number)
    return number, number / 2, BOX, positions, positions + 1


def fill(dataset, numbers=range(N_FRAMES)):
    """Write frames to a dataset of a store, and close it."""
    with dataset:
        for number in numbers:
            dataset.write(*make_frame(number), native=number in NATIVES)


def write_files(folder):
    """Write the frames to two files, as exact as XTC is, and return their paths."""
    paths = [folder / "a.xtc", folder / "b.xtc"]
    for at, path in enumerate(paths):
        with XTCFile(str(path), "w") as file:
            for number in range(10 * at, 10 * at + 10):
                box = np.diag(BOX[:3] / np.float32(10))
                file.write(make_positions(number) / np.float32(10), box, number, number / 2, 1000)
    return paths


class FrameSourceTests:
    """A source gives the frames that it is asked for, in the order asked for, or refuses."""

    #: How far positions may be off those that were written, Å.
    tolerance = 0.0

    def check(self, frame, number, rows=slice(None)):
        assert (frame.number, frame.time) == (number, number / 2)
        np.testing.assert_array_equal(frame.box, BOX)
        assert frame.positions.shape == (N_ATOMS, 3)
        np.testing.assert_allclose(frame.positions[rows], make_positions(number)[rows], rtol=0, atol=self.tolerance)

    def check_absent(self, source):
        """A frame that is not there is a miss."""
        assert [frame is None for frame in source.read([3, N_FRAMES, 0])] == [False, True, False]

    def test_frames_come_in_any_order_and_again(self, source):
        numbers = [*np.random.default_rng(3).permutation(N_FRAMES).tolist(), 7, 7, 0]
        for wanted in (numbers, np.array(numbers)):
            for number, frame in zip(numbers, source.read(wanted), strict=True):
                self.check(frame, number)

    def test_no_frames_are_none(self, source):
        assert list(source.read([])) == []
        assert source.holds(np.empty(0, np.int64)).tolist() == []

    def test_it_holds_the_frames_that_it_gives(self, source):
        assert source.holds(np.array([0, 19, 20, 3, 1 << 40])).tolist() == [True, True, False, True, False]

    @pytest.mark.parametrize(
        "atoms", [[0], [N_ATOMS - 1], [0, 17, 5000], range(4000, 4200), range(0, N_ATOMS, 500), range(N_ATOMS), []]
    )
    def test_some_atoms_are_those_of_the_frame(self, source, atoms):
        chosen = np.array(atoms, dtype=np.int64)
        for number, frame in enumerate(source.read(range(5), ReadOptions(chosen))):
            self.check(frame, number, chosen)

    def test_runs_of_atoms_are_those_of_the_frame(self, source):
        runs = np.array([[5, 9], [4090, 4100], [8999, 9000]], dtype=np.int64)
        rows = np.concatenate([np.arange(*run) for run in runs])
        for number, frame in enumerate(source.read(range(5), ReadOptions(runs, POSITIONS))):
            self.check(frame, number, rows)

    @pytest.mark.parametrize("atoms", [[3, 2], [1, 1], [-1, 4]])
    def test_atoms_that_are_not_ascending_are_refused(self, source, atoms):
        with pytest.raises(ValueError, match="ascending"):
            next(source.read([0], ReadOptions(np.array(atoms, dtype=np.int64))))
        with pytest.raises(ValueError, match="int64"):
            next(source.read([0], ReadOptions(np.array(atoms, dtype=np.int32))))
        self.check(next(source.read([0])), 0)

    @pytest.mark.parametrize(
        "options",
        [
            ReadOptions(direct="on"),
            ReadOptions(direct="off", ahead=False),
            ReadOptions(request_bytes=4096, ring=2),
        ],
        ids=["direct", "in turn", "small requests"],
    )
    def test_however_frames_are_read_they_are_the_same(self, source, options):
        for number, frame in enumerate(source.read(range(N_FRAMES), options)):
            self.check(frame, number)

    def test_readings_take_turns(self, source):
        several = [source.read(range(5)), source.read(range(5, 10))]
        for number in range(5):
            for at, reading in enumerate(several):
                self.check(next(reading), number + 5 * at)

    def test_a_reading_that_is_left_is_in_nobodys_way(self, source):
        self.check(next(source.read(range(N_FRAMES))), 0)
        self.check(next(source.read([9])), 9)

    def test_arrays_may_be_written_to(self, source):
        frame = next(source.read([4]))
        assert frame.positions.dtype == np.float32
        frame.positions[:] = 1
        assert (frame.positions == 1).all()
        self.check(next(source.read([4])), 4)

    def test_a_frame_that_is_not_there(self, source):
        self.check_absent(source)


class OriginTests(FrameSourceTests):
    """An origin says which frame is not there."""

    def check_absent(self, source):
        for number in (N_FRAMES, -1):
            with pytest.raises(UsageError, match=f"there is no frame {number};"):
                list(source.read([3, number]))


class CachedFramesTests(FrameSourceTests):
    """A cache tells which frames it has, by all ways the same, and why a frame is a miss; fields come alone."""

    def test_all_ways_tell_the_same_frames(self, source):
        assert (set(source.native), set(source.alien)) == (NATIVES, ALIENS)
        numbers = np.array([0, 1, 2, 19, 20, 1 << 40])
        assert source.holds(numbers).tolist() == [True, True, True, True, False, False]
        assert source.holds(numbers, native=True).tolist() == [True, False, True, False, False, False]
        assert source.holds(np.arange(-1, 2)).tolist() == [False, True, True]
        assert source.bounds() == (0, 19)
        assert source.bounds(native=True) == (0, 18)
        facts = source.facts()
        assert (facts["native"], facts["alien"]) == (len(NATIVES), len(ALIENS))

    @pytest.mark.parametrize(
        "frames",
        [
            range(20),
            range(7, 500, 3),
            range(19, -1, -2),
            range(18, 200, 64),
            range(0),
            range(MAX_NUMBER, -1, -MAX_NUMBER),
        ],
    )
    def test_marks_are_of_what_is_held(self, source, frames):
        words = np.zeros((2, -(-len(frames) // 64)), dtype=np.uint64)
        source.mark(frames, *words)
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        found = [{frames[at] for at in np.flatnonzero(kind).tolist()} for kind in bits]
        assert found == [NATIVES & set(frames), ALIENS & set(frames)]
        numbers = np.array(frames, dtype=np.int64)
        assert source.holds(numbers).tolist() == [number < N_FRAMES for number in frames]
        assert source.holds(numbers, native=True).tolist() == [number in NATIVES for number in frames]
        others = ~words
        source.mark(frames, *others)  # bits that are set stay
        assert (others == 2**64 - 1).all()

    def test_marks_that_cannot_be_are_refused(self, source):
        one, two, three = (np.zeros(n, dtype=np.uint64) for n in (1, 2, 3))
        for native, alien, n in ((two, two, 129), (three, three, 128), (two, three, 128), (three, two, 128)):
            with pytest.raises(ValueError, match=f"{n} frames, but {native.size} words .* {alien.size} of aliens"):
                source.mark(range(n), native, alien)
        for frames in (range(-1, 5), range(5, -2, -1), range(-5, 7, 3)):
            with pytest.raises(ValueError, match=f"first is {frames.start}, step {frames.step}, count {len(frames)}"):
                source.mark(frames, one, one)
        assert not one.any() and not two.any() and not three.any()

    def test_it_tells_what_it_is(self, source):
        assert (source.name, source.generation) == ("/sim1", b"g1")
        assert source.identity

    def test_an_attachment_comes_whole_or_is_none(self, source):
        assert source.attachment("none") is None
        assert source.attachment("note") == NOTE

    def test_a_miss_tells_its_reason(self, source):
        reading = source.read([0, N_FRAMES, -1, 5])
        assert [frame is None for frame in reading] == [False, True, True, False]
        assert (reading.reason, reading.misses) == ("absent", {"absent": 2})

    def test_what_is_not_asked_for_is_not_read(self, source):
        whole = source.read(range(N_FRAMES))
        for number, frame in enumerate(whole):
            np.testing.assert_array_equal(frame.velocities, make_positions(number) + 1)
            assert frame.forces is None
        some = source.read(range(N_FRAMES), ReadOptions(np.arange(100), VELOCITIES))
        for number, frame in enumerate(some):
            assert frame.positions is None
            np.testing.assert_array_equal(frame.velocities[:100], make_positions(number)[:100] + 1)
        assert 0 < some.nbytes < whole.nbytes / 2

    def test_frames_are_checked_as_they_lie(self, source):
        for fields in (0, FIELDS, POSITIONS):
            whole = source.read(range(N_FRAMES), ReadOptions(fields=fields))
            checked = source.read(range(N_FRAMES), ReadOptions(fields=fields, unpack=False))
            for frame, other in zip(whole, checked, strict=True):
                assert (frame.number, frame.time) == (other.number, other.time)
                assert other.positions is None and other.velocities is None
            assert checked.nbytes == whole.nbytes
