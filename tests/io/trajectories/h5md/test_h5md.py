"""H5MD in HDF5 and in Zarr: frames are those that MDAnalysis reads, to the last bit, and what it cannot read, too."""

from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from MDAnalysis.coordinates.H5MD import H5MDReader, H5MDWriter
from support import needs

from himach.errors import TrajectoryError, UsageError
from himach.io.frame_source import ReadOptions
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.h5md.layout import VECTORS
from himach.io.trajectories.origin import open_origin

from ..trajectory_formats import Sample, TrajectoryFileTests, TrajectoryFormatTests, read_frames
from .trees import BASE, KINDS, theirs, tree, write

h5py = needs.module("h5py")
needs.module("zarr")

UNITS = H5MDReader._unit_translation


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


class H5mdTests(TrajectoryFormatTests):
    name = "a.h5md"

    @pytest.fixture
    def sample(self, tmp_path):
        return self.write(tmp_path)

    def write(self, folder, **how):
        return Sample(write(folder / self.name, tree(), **how), twin=write(folder / "twin.h5md", tree()))

    def expect_times(self, sample, dt=None, time_offset=0.0):
        """MDAnalysis's reader knows neither keyword."""
        times = [time for _, time, *_ in sample.expect()]
        return [time_offset + (time if dt is None else dt * number) for number, time in enumerate(times)]


class TestH5md(H5mdTests, TrajectoryFileTests):
    reads_to_the_cut = False

    def write(self, folder, **how):
        return super().write(folder, **(how or {"compression": "gzip"}))

    def damages(self, sample, number):
        with h5py.File(sample.path) as file:
            place = file[f"{BASE}/position/value"].id.get_chunk_info_by_coord((number, 0, 0)).byte_offset
        content = bytearray(sample.path.read_bytes())
        content[place + 20 : place + 60] = bytes(40)
        sample.path.write_bytes(content)
        yield range(5, 10)

    def test_a_damaged_frame_that_has_a_checksum_alone_is_named(self, tmp_path):
        self.test_a_damaged_frame_is_named_and_the_others_come(self.write(tmp_path, fletcher32=True))


class TestZarr2(H5mdTests):
    """Chunks are Blosc's."""

    name = "a.2.zarrmd"

    def damages(self, sample, number):
        file = sample.open().files[0]
        chunk = next(Path(path) for path in file.frame_files(np.array([number])) if "position" in path)
        whole = chunk.read_bytes()
        for content in (whole[:-20], b"", bytes(len(whole))):
            chunk.write_bytes(content)
            yield range(5, 10)
        chunk.unlink()
        self.message = rf"frame {{number}} .*: its chunk {chunk} is missing"
        yield range(5, 10)


class TestZarr3(TestZarr2):
    """Chunks are Zstandard's."""

    name = "a.3.zarr"


@pytest.mark.parametrize(("dtype", "box"), [("f4", "triclinic"), ("f8", "lengths"), ("f4", "none")])
def test_frames_are_those_of_mdanalysis(name, dtype, box, tmp_path):
    content = tree(dtype=dtype, box=box)
    expected = theirs(write(tmp_path / "twin.h5md", content))
    assert read_frames(open_origin([write(tmp_path / name, content)])) == expected


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {array: st.sampled_from([*UNITS[kind]]) for array, kind in {"time": "time", **VECTORS}.items()}
    ),
    st.integers(1, 13),
    st.integers(1, 9),
    st.sampled_from([{}, {"compression": "gzip"}, {"fletcher32": True}]),
    st.lists(st.integers(0, 11), max_size=12),
    st.booleans(),
)
def test_whatever_the_units_and_the_chunks(tmp_path, units, n_rows, n_atoms, how, numbers, converted):
    path = write(tmp_path / "a.h5md", tree(units=units), n_rows, n_atoms, **how)
    try:
        expected = theirs(path, convert_units=converted)
    except ValueError as error:  # MDAnalysis has the name of a unit, but no factor
        with pytest.raises(TrajectoryError, match=str(error).split("'")[0][:20]):
            open_origin([path], keywords={"convert_units": converted})
        return
    origin = open_origin([path], keywords={"convert_units": converted})
    times = np.array([time for _, time, *_ in expected])
    assert read_frames(origin, numbers) == [expected[number] for number in numbers]
    assert origin.times(range(12)).tolist() == times.tolist()


def test_what_mdanalysis_writes(tmp_path):
    path = tmp_path / "a.h5md"
    universe = mda.Universe.empty(6, trajectory=True, velocities=True)
    with H5MDWriter(str(path), 6, velocities=True, lengthunit="nm", velocityunit="nm/ps", timeunit="fs") as writer:
        for number in range(9):
            universe.atoms.positions = np.full((6, 3), number + 0.1)
            universe.atoms.velocities = np.full((6, 3), number - 0.1)
            universe.dimensions = [40 + number, 41, 42, 90, 80, 70]
            universe.trajectory.ts.time = number * 0.3
            universe.trajectory.ts.frame = number
            writer.write(universe)
    origin = open_origin([path])
    assert read_frames(origin) == theirs(path)
    assert (origin.kinds, origin.n_atoms, origin.has_velocities, origin.has_forces) == (("H5MD",), 6, True, False)
    assert origin.warnings == ()


@pytest.mark.parametrize("how", [{}, {"shards": (10, 8, 3)}, {"compressors": None}], ids=["", "shards", "plain"])
def test_chunks_of_zarr(how, tmp_path):
    content = tree(n_atoms=11)
    expected = theirs(write(tmp_path / "twin.h5md", content))
    origin = open_origin([write(tmp_path / "a.3.zarr", content, 5, 4, **how)])
    assert read_frames(origin) == expected
    assert read_frames(origin, [11, 3, 3, 4, 0]) == [expected[number] for number in (11, 3, 3, 4, 0)]
    file = origin.files[0]
    of_some = file.frame_files(np.array([0, 4]))
    assert all(Path(path).is_file() for path in of_some)
    assert of_some < file.frame_files(np.arange(12)) <= {*file.content(100)}


# Beyond MDAnalysis: what H5MD allows.


def test_steps_and_times_at_equal_distances(name, tmp_path):
    content = tree()
    for each in ("position", "velocity", "force", "box/edges"):
        content[f"{BASE}/{each}/step"] = (np.int32(50), {"offset": 100})
        content[f"{BASE}/{each}/time"] = (np.float64(25), {"unit": "fs", "offset": 50.0})
    origin = open_origin([write(tmp_path / name, content)], keywords={"time_offset": 1.0})
    assert [frame.time for frame in origin.read(range(12))] == pytest.approx([1.05 + 0.025 * i for i in range(12)])
    assert [frame.data["step"] for frame in origin.read([0, 3])] == [100, 250]


def test_a_box_that_stays(name, tmp_path):
    content = tree(box="none")
    content[f"{BASE}/box/edges"] = (np.array([4.0, 5.0, 6.0]), {"unit": "nm"})
    for frame in open_origin([write(tmp_path / name, content)]).read(range(3)):
        assert frame.box.tolist() == [40, 50, 60, 90, 90, 90]
    content[f"{BASE}/box/edges"] = (np.array([4.0, 5.0, 6.0]), {})  # in the units of the positions
    assert next(open_origin([write(tmp_path / f"other.{name}", content)]).read([4])).box[0] == 40


def test_velocities_at_some_steps_only(name, tmp_path):
    content = tree()
    whole = content[f"{BASE}/velocity/value"][0]
    for part in ("value", "step", "time"):
        values, attributes = content[f"{BASE}/velocity/{part}"]
        content[f"{BASE}/velocity/{part}"] = (values[1::3], attributes)
        values, attributes = content[f"observables/lambda/{part}"]
        content[f"observables/lambda/{part}"] = (values[::2], attributes)
    content["observables/charge"] = (np.arange(7.0), {})  # the same in all frames
    lambdas = content["observables/lambda/value"][0]
    for frame in open_origin([write(tmp_path / name, content)]).read([*range(12), 4, 1]):
        assert (frame.velocities is not None) == (frame.number % 3 == 1)
        if frame.velocities is not None:
            np.testing.assert_array_equal(frame.velocities, whole[frame.number] * np.float32(0.01))
        assert frame.data.get("lambda") == (None if frame.number % 2 else lambdas[frame.number // 2])
        assert frame.data["charge"].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_one_of_several_groups(name, tmp_path):
    content = tree()
    content |= {path.replace("/all", "/water"): values for path, values in tree(n_atoms=4).items() if BASE in path}
    path = write(tmp_path / name, content)
    with pytest.raises(TrajectoryError, match=r"several groups of particles: all, water; .*keyword group.*group=all"):
        open_origin([path])
    assert open_origin([path], keywords={"group": "water"}).n_atoms == 4
    with pytest.raises(TrajectoryError, match="no group particles/lipids; there are: all, water"):
        open_origin([path], keywords={"group": "lipids"})
    with pytest.raises(UsageError, match=r"no keyword 'grup' .* did you mean 'group'"):
        open_origin([path], keywords={"grup": "water"})


def test_times_by_keyword(name, tmp_path):
    content = tree()
    content.pop(f"{BASE}/position/time")
    path = write(tmp_path / name, content)
    with pytest.raises(TrajectoryError, match="no times of its positions; give their distance as the keyword dt"):
        open_origin([path])
    origin = open_origin([path], keywords={"dt": 2.0, "time_offset": 1.0})
    assert [frame.time for frame in origin.read([0, 1, 5])] == [1, 3, 11]


def test_positions_that_were_not_written_to_the_end(name, tmp_path):
    content = tree()
    content[f"{BASE}/position/time"] = (content[f"{BASE}/position/time"][0][:8], {"unit": "fs"})
    with pytest.warns(UserWarning, match=rf"{name}: positions of 12 frames, but steps and times of 8"):
        origin = open_origin([write(tmp_path / name, content)])
    assert origin.n_frames == 8
    assert len(read_frames(origin)) == 8


class Other(H5MDReader):
    """A reader of a user's own."""

    format = "HIMACH_TEST_OTHER"


def test_a_reader_that_a_user_has_put_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(Other, "format", "H5MD")  # a class that is born with it takes the place for good
    monkeypatch.setitem(mda._READERS, "H5MD", Other)
    file = open_origin([write(tmp_path / "a.h5md", tree())]).files[0]
    assert not isinstance(file, H5mdFile)


def test_chunks_of_other_atoms_are_not_read(tmp_path, monkeypatch):
    path, get, shapes = write(tmp_path / "a.h5md", tree()), h5py.Dataset.__getitem__, []

    def get_noting_shape(dataset, place, **how):
        values = get(dataset, place, **how)
        shapes.append(values.shape)
        return values

    frame = next(open_origin([path]).read([4]))
    monkeypatch.setattr(h5py.Dataset, "__getitem__", get_noting_shape)
    origin = open_origin([path])
    shapes.clear()
    part = next(origin.read([4], ReadOptions(atoms=np.arange(2))))
    np.testing.assert_array_equal(part.positions[:2], frame.positions[:2])
    assert (1, 2, 3) in shapes
    assert (1, 7, 3) not in shapes
