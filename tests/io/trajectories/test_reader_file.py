"""Files through MDAnalysis's readers, and read ahead."""

import os
import pickle
import shutil
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis.coordinates.base import ProtoReader
from MDAnalysis.coordinates.XYZ import XYZReader
from MDAnalysisTests import datafiles as data
from support.io_samples import FORMATS, copied

from himach.errors import TrajectoryError
from himach.io.trajectories import readahead
from himach.io.trajectories.dcd_file import DcdHeader
from himach.io.trajectories.formats import FORMATS as REGISTERED
from himach.io.trajectories.open_file import reads_in_order
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.readahead import Ahead
from himach.io.trajectories.reader_file import ReaderFile

from .trajectory_formats import Sample, TrajectoryFileTests, read_frames


def pdb(path: Path, boxes: list[float | None]) -> Path:
    """Write a PDB file of a model for each of these boxes, where it has one."""
    lines = []
    for number, box in enumerate(boxes):
        lines.append(f"MODEL     {number + 1:4d}")
        if box is not None:
            lines.append(f"CRYST1{box:9.3f}{box:9.3f}{box:9.3f}  90.00  90.00  90.00 P 1           1")
        lines.append(f"ATOM      1  CA  ALA A   1    {number:8.3f}{0:8.3f}{0:8.3f}  1.00  0.00           C")
        lines.append("ENDMDL")
    path.write_text("\n".join(lines) + "\nEND\n")
    return path


def test_tng_frames_are_those_of_mdanalysis():
    sample = Sample(Path(data.TNG_traj), Path(data.TNG_traj_gro))
    assert read_frames(sample.open()) == sample.expect()


class TestText(TrajectoryFileTests):
    @pytest.fixture(params=["PDB", "TRJ"])
    def sample(self, request, tmp_path):
        if request.param == "PDB":
            return Sample(pdb(tmp_path / "a.pdb", [10, 11, 12, 13, 14, 15]))
        topology, trajectory = copied("TRJ", tmp_path)
        return Sample(trajectory, topology, reader_keywords={"n_atoms": 252})


class TestXyz(TrajectoryFileTests):
    lines = tuple(f"3\n\nC {number}.25 0 0\nN 0 {number}.5 0\nO 1 2 3\n" for number in range(9))

    @pytest.fixture
    def sample(self, tmp_path):
        (tmp_path / "a.xyz").write_text("".join(self.lines))
        return Sample(tmp_path / "a.xyz")

    def damages(self, sample, number):
        yield from super().damages(sample, number)
        bad = self.lines[number].replace(".25", ".x5")  # as long as before
        sample.path.write_text("".join([*self.lines[:number], bad, *self.lines[number + 1 :]]))
        yield {number}


class TestNetCdf(TrajectoryFileTests):
    reads_to_the_cut = False

    @pytest.fixture(params=[False, True], ids=["positions", "all"])
    def sample(self, request, tmp_path):
        path, more = tmp_path / "a.nc", request.param
        universe = mda.Universe.empty(6, trajectory=True, velocities=more, forces=more)
        with mda.Writer(str(path), 6, velocities=more, forces=more) as writer:
            for number in range(9):
                ts = universe.trajectory.ts
                ts.positions = np.random.default_rng(number).normal(size=(6, 3))
                if more:
                    ts.velocities, ts.forces = ts.positions + 1, ts.positions + 2
                ts.frame, ts.time, ts.dimensions = number, 0.5 * number, [40 + number, 41, 42, 90, 80, 70]
                writer.write(universe)
        return Sample(path)

    def damages(self, sample, number):
        """Of a file that has become shorter no frame can be read."""
        for _ in super().damages(sample, number):
            yield range(9)


class TestGro(TrajectoryFileTests):
    """Of one frame, which travels with what was opened."""

    reads_to_the_cut = False

    @pytest.fixture
    def sample(self, tmp_path):
        return Sample(Path(shutil.copy(data.GRO_velocity, tmp_path)))

    def test_a_damaged_frame_is_named_and_the_others_come(self, sample):
        expected, origin = sample.expect(), sample.open()
        sample.path.write_bytes(b"")
        assert read_frames(origin) == expected


def boxes(origin: Origin, numbers: list[int]) -> list[float | None]:
    """Return the boxes of frames, as a rank reads them that got the opened trajectory as a pickle."""
    return [None if f.box is None else float(f.box[0]) for f in pickle.loads(pickle.dumps(origin)).read(numbers)]


@pytest.mark.parametrize("given", [[None, None, 20, None, 30, None], [10, None, 20, None, None, 30]])
def test_a_model_without_a_box_shows_that_of_the_model_before_it(given, tmp_path):
    origin = open_origin([pdb(tmp_path / "a.pdb", given)])
    shown = [next((box for box in given[i::-1] if box is not None), None) for i in range(6)]
    assert boxes(origin, list(range(6))) == shown
    for first in range(6):
        assert boxes(origin, list(range(first, 6))) == shown[first:]
    assert boxes(origin, [5, 3, 3, 4, 0]) == [shown[i] for i in (5, 3, 3, 4, 0)]


def write_trz(path: Path, first: int) -> Path:
    """Copy a TRZ file and number its frames from `first`, as one does that was cut from a longer one."""
    origin = open_origin([data.TRZ], data.TRZ_psf)
    reader = origin.files[0]._get_reader()
    content = bytearray(Path(data.TRZ).read_bytes())
    place = reader._dtype.fields["nframe"][1]
    for number in range(origin.n_frames):
        at = reader._headerdtype.itemsize + number * reader._dtype.itemsize + place
        content[at : at + 4] = np.array(first + number, dtype="<i4").tobytes()
    path.write_bytes(content)
    return path


def test_a_file_that_numbers_its_frames_otherwise(tmp_path):
    expected = [frame.positions.copy() for frame in open_origin([data.TRZ], data.TRZ_psf).read(range(6))]
    state = pickle.dumps(open_origin([write_trz(tmp_path / "cut.trz", 4)], data.TRZ_psf))
    for numbers in ([3, 4], [5, 0], [2]):
        for number, frame in zip(numbers, pickle.loads(state).read(numbers), strict=True):
            np.testing.assert_array_equal(frame.positions, expected[number])


class Forward(XYZReader):
    """A reader that goes on to the next frame only."""

    format = "HIMACH_TEST_FORWARD"

    _read_frame = ProtoReader._read_frame  # as a reader has it that does not define it


def test_a_reader_that_cannot_seek_reads_in_order():
    reader = Forward(data.XYZ)
    assert reads_in_order(reader, REGISTERED["XYZ"])
    file = pickle.loads(pickle.dumps(ReaderFile(data.XYZ, reader, reader.n_frames, True)))
    expected = [ts.positions.copy() for ts in XYZReader(data.XYZ)]
    for number in (3, 4, 9, 2, 2, 0):
        np.testing.assert_array_equal(file.read(number).positions, expected[number])


class Astray(XYZReader):
    """A reader that seeks to the frame after the one that it is asked for."""

    format = "HIMACH_TEST_ASTRAY"

    def _read_frame(self, frame):
        return super()._read_frame(min(frame + 1, 9))


def test_another_frame_than_the_one_asked_for_is_refused():
    file = ReaderFile(data.XYZ, Astray(data.XYZ), 10)
    with pytest.raises(ValueError, match="gives frame 4 of the file for frame 3"):
        file.read(3)


def test_another_time_than_the_index_has_is_refused(tmp_path):
    path = tmp_path / "a.ncdf"
    path.write_bytes(Path(data.NCDF).read_bytes())
    origin = open_origin([path])
    times = origin.files[0].times
    times[5] += 0.5
    with pytest.raises(TrajectoryError, match=rf"frame 5 .*gives a frame at .* there was one at {times[5]:g} ps"):
        list(origin.read([4, 5]))


@given(n=st.integers(1, 60), start=st.integers(0, 20), stride=st.integers(-2, 5).filter(bool), batch=st.integers(1, 12))
def test_every_frame_is_asked_for_before_it_is_read_and_not_too_early(n, start, stride, batch):
    numbers = [number for number in range(start, start + n * stride, stride) if number >= 0]
    n_frames = max(numbers, default=0) + 8
    asked: list[int] = []
    ahead = Ahead(n_frames, readahead.BATCH_BYTES // batch, asked.extend)
    ahead.start(numbers)
    for place, number in enumerate(numbers):
        ahead.reach(place)
        assert number in asked
        assert len(asked) <= place + 2 * batch
    assert len(set(asked)) == len(asked)
    beyond = asked[len(numbers) :]
    assert asked[: len(numbers)] == numbers
    assert all(number < n_frames and (number - numbers[0]) % stride == 0 for number in beyond)
    assert not beyond or stride > 0


@pytest.mark.parametrize("name", ["XTC", "TRR", "DCD", "NCDF", "PDB"])
def test_a_reader_asks_for_the_frames_of_its_file(name, monkeypatch):
    topology, trajectory = FORMATS[name]
    origin = open_origin([trajectory], topology)
    expected = [frame.positions.copy() for frame in (next(origin.read([number])) for number in range(6))]
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, begin, length, _advice: asked.append((begin, length)))
    for frame, positions in zip(origin.read(range(6)), expected, strict=True):
        np.testing.assert_array_equal(frame.positions, positions)
    size = os.path.getsize(trajectory)
    begins = DcdHeader.read(str(trajectory)).start if name == "DCD" else 0
    assert min(begin for begin, _ in asked) == begins
    assert all(begin + length <= size for begin, length in asked)
    assert sum(length for _, length in asked) >= origin.nbytes(range(6)) - 6


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("name", ["XTC", "TRR", "DCD"])
def test_frames_far_apart_are_read_and_nothing_between_them(name, stride, monkeypatch):
    topology, trajectory = FORMATS[name]
    origin = open_origin([trajectory], topology)
    numbers = np.arange(3, origin.n_frames, stride)
    for frame in origin.read([0]):  # what is opened is read, too
        assert frame.number == 0
    asked, read = [], []
    preadv = os.preadv
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, _begin, length, _advice: asked.append(length))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: read.append(preadv(fd, buffers, at)) or read[-1])
    for taken, frame in enumerate(origin.read(numbers)):
        assert frame.number == numbers[taken]
    assert sum(read) == origin.nbytes(numbers)
    assert sum(asked) == origin.nbytes(numbers)
