import os
import pickle
import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from support.io_samples import FORMATS, copied, make

from himach.errors import TrajectoryError, UsageError
from himach.io.dataset.source import Source
from himach.io.trajectory.origin import open_origin


@pytest.mark.parametrize("name", FORMATS)
def test_frames_are_those_of_mdanalysis(name, tmp_path):
    topology, trajectory = copied(name, tmp_path)
    before = sorted(os.listdir(tmp_path))
    origin = pickle.loads(pickle.dumps(open_origin([trajectory], topology)))
    universe = mda.Universe(*FORMATS[name])
    assert origin.n_frames == len(origin) == len(universe.trajectory)
    for frame, ts in zip(origin.read(range(origin.n_frames)), universe.trajectory, strict=True):
        assert frame.number == ts.frame
        assert frame.time == ts.time
        assert frame.positions.dtype == np.float32
        assert frame.positions.flags.c_contiguous
        assert frame.positions.flags.writeable
        np.testing.assert_array_equal(frame.positions, ts.positions)
        assert (frame.box is None) == (ts.dimensions is None)
        if frame.box is not None:
            assert frame.box.dtype == np.float32
            np.testing.assert_array_equal(frame.box, ts.dimensions)
        assert (frame.velocities is not None) == ts.has_velocities
        if ts.has_velocities:
            np.testing.assert_array_equal(frame.velocities, ts.velocities)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("name", FORMATS)
def test_any_order(name, tmp_path):
    topology, trajectory = copied(name, tmp_path)
    origin = open_origin([trajectory], topology)
    numbers = np.random.default_rng(1).permutation(np.repeat(np.arange(origin.n_frames), 2))[:12]
    every = {n: frame.positions.copy() for n, frame in enumerate(origin.read(range(origin.n_frames)))}
    for number, frame in zip(numbers, origin.read(numbers), strict=True):
        assert frame.number == number
        np.testing.assert_array_equal(frame.positions, every[number])


@pytest.mark.parametrize("name", ["XTC", "TRR", "DCD", "NCDF", "XYZ"])
def test_whole_files_warn_of_nothing(name, tmp_path):
    _, trajectory = copied(name, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert open_origin([trajectory]).warnings == tuple(str(w.message) for w in caught if w.category is UserWarning)
    assert not [w for w in caught if "cut" in str(w.message)]


def test_unpickled_builds_no_index(tmp_path, monkeypatch):
    state = pickle.dumps(open_origin([make(tmp_path / "a.xtc", [0, 1, 2])]))
    monkeypatch.setattr("himach.io.trajectory.frame_file.read_index", None)
    assert [frame.time for frame in pickle.loads(state).read([2, 0])] == [2, 0]


def test_unpickled_xyz_counts_no_lines(tmp_path, monkeypatch):
    _, trajectory = copied("XYZ", tmp_path)
    state = pickle.dumps(open_origin([trajectory]))
    monkeypatch.setattr("MDAnalysis.coordinates.XYZ.XYZReader._read_xyz_n_frames", None)
    assert len(list(pickle.loads(state).read([9, 0]))) == 2


def test_times_and_dt(tmp_path):
    even = open_origin([make(tmp_path / "even.xtc", [0.1 * i for i in range(30)])])
    assert even.dt(range(0, 30)) == pytest.approx(0.1, abs=1e-7)
    assert even.dt(range(0, 30, 3)) == pytest.approx(0.3, abs=1e-7)
    assert even.dt(range(4, 5)) is None
    assert even.timestep == pytest.approx(0.1)
    uneven = open_origin([make(tmp_path / "uneven.xtc", [0, 1, 2, 4, 6])])
    assert uneven.dt(range(5)) is None
    assert uneven.dt(range(0, 5, 2)) is None
    assert uneven.dt(range(2, 5)) == 2
    np.testing.assert_array_equal(uneven.times(range(5)), [0, 1, 2, 4, 6])
    np.testing.assert_array_equal(uneven.times(np.array([3, 0])), [4, 0])


def test_dt_keyword(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [0.5, 1])]
    origin = open_origin(paths, keywords={"dt": 5.0})
    assert [frame.time for frame in origin.read(range(5))] == [0, 5, 10, 15, 20]
    assert origin.dt(range(5)) == 5


@pytest.mark.parametrize("name", ["DCD", "NCDF", "XYZ", "TRR"])
def test_times_are_known_without_reading(name, tmp_path, monkeypatch):
    _, trajectory = copied(name, tmp_path)
    for keywords in ({}, {"dt": 0.5}, {"time_offset": 100.0}, {"dt": 0.5, "time_offset": 7.0}):
        origin = open_origin([trajectory], keywords=keywords)
        universe = mda.Universe(*FORMATS[name], **keywords)
        expected = [ts.time for ts in universe.trajectory]
        monkeypatch.setattr(origin, "_read", None)
        np.testing.assert_array_equal(origin.times(range(origin.n_frames)), expected)


@pytest.mark.parametrize("kind", ["xtc", "trr"])
def test_bytes_are_exact(kind, tmp_path):
    path = make(tmp_path / f"a.{kind}", [0, 1, 2, 3])
    origin = open_origin([path])
    assert origin.nbytes(range(4)) == path.stat().st_size
    assert origin.nbytes([1]) + origin.nbytes([0, 2, 3]) == path.stat().st_size
    source = Source(origin)
    assert len(list(source.read(np.arange(4)))) == 4
    assert source.bytes_origin == path.stat().st_size
    assert source.bytes_cache == 0
    source.close()


def test_fingerprint(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1, 2])
    first = open_origin([path]).fingerprint
    assert open_origin([path]).fingerprint == first
    assert open_origin([make(tmp_path / "b.xtc", [0, 1, 2.5])]).fingerprint != first
    assert len(first) == 64


def test_velocities(tmp_path):
    origin = open_origin([make(tmp_path / "a.trr", [0, 1], velocities=True)])
    assert origin.has_velocities
    assert not origin.has_forces
    (frame,) = origin.read([1])
    np.testing.assert_allclose(frame.velocities, -frame.positions)


def test_locate(tmp_path):
    origin = open_origin([make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [3, 4])])
    assert origin.locate(2) == (str(tmp_path / "a.xtc"), 2)
    assert origin.locate(3) == (str(tmp_path / "b.xtc"), 0)
    with pytest.raises(UsageError, match=r"no frame 5.*5 frames"):
        list(origin.read([5]))


def test_missing_file_gets_a_hint(tmp_path):
    make(tmp_path / "production.xtc", [0, 1])
    with pytest.raises(UsageError, match=r"prodution\.xtc; did you mean .*production\.xtc"):
        open_origin([tmp_path / "prodution.xtc"])
    with pytest.raises(UsageError, match=r"folder .* does not exist"):
        open_origin([tmp_path / "nowhere" / "a.xtc"])
    with pytest.raises(UsageError, match="no trajectory given"):
        open_origin([])


def test_no_trajectory(tmp_path):
    (tmp_path / "empty.xtc").touch()
    with pytest.raises(TrajectoryError, match=r"empty\.xtc is empty"):
        open_origin([tmp_path / "empty.xtc"])
    for suffix in ("xtc", "trr", "dcd", "nc", "xyz"):
        (tmp_path / f"text.{suffix}").write_text("These are not the frames you are looking for.\n" * 9)
        with pytest.raises(TrajectoryError, match=rf"text\.{suffix}"):
            open_origin([tmp_path / f"text.{suffix}"])
    (tmp_path / "notes.foo").write_text("notes")
    with pytest.raises(UsageError, match="format"):
        open_origin([tmp_path / "notes.foo"])
    with pytest.raises(UsageError, match="himach split"):
        open_origin([tmp_path])


def test_keywords_that_mean_nothing_here(tmp_path):
    path = make(tmp_path / "a.xtc", [0])
    for name in ("in_memory", "transformations", "sub"):
        with pytest.raises(UsageError, match=name):
            open_origin([path], keywords={name: True})


def test_format_keyword_and_content(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1]).rename(tmp_path / "frames.part0002")
    assert open_origin([path]).kinds == ("XTC",)
    assert open_origin([path], keywords={"format": "XTC"}).n_frames == 2
