import pickle

import numpy as np
import pytest
from support.io_samples import copied, make

from himach.errors import TrajectoryError, UsageError
from himach.io.dataset.source import Source
from himach.io.trajectory.origin import open_origin


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


def test_files_that_readers_misread_are_refused_or_warned_of(tmp_path):
    frame = "water\n    1\n    1SOL     OW    1   0.100   0.200   0.300\n   3.00000   3.00000   3.00000\n"
    several, single = tmp_path / "several.gro", tmp_path / "single.gro"
    several.write_text(2 * frame)
    single.write_text(frame)
    with pytest.raises(TrajectoryError, match=r"several\.gro has several frames"):
        open_origin([several])
    assert open_origin([single]).n_frames == 1
    boxed = tmp_path / "boxed.xyz"
    boxed.write_text('1\nLattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3\nAr 1 2 3\n')
    with pytest.warns(UserWarning, match=r"the box that Lattice= tells is not read"):
        open_origin([boxed])


@pytest.mark.parametrize("suffix", ["xtc", "trr"])
@pytest.mark.parametrize(("begin", "step"), [(2e4, 0.004), (2e5, 0.06), (1e6, 1.2), (3e6, 4.4), (0, 0.1)])
def test_dt_of_times_that_float32_rounds(tmp_path, suffix, begin, step):
    origin = open_origin([make(tmp_path / f"late.{suffix}", [begin + step * i for i in range(400)])])
    assert origin.dt(range(400)) == pytest.approx(step, rel=1e-2)


def test_dt_keyword(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [0.5, 1])]
    origin = open_origin(paths, keywords={"dt": 5.0})
    assert [frame.time for frame in origin.read(range(5))] == [0, 5, 10, 15, 20]
    assert origin.dt(range(5)) == 5


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


def test_another_content_has_another_fingerprint(tmp_path):
    first, other = (open_origin([make(tmp_path / f"{last}.xtc", [0, 1, last])]) for last in (2, 2.5))
    assert first.fingerprint != other.fingerprint


def test_locate(tmp_path):
    origin = open_origin([make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [3, 4])])
    assert origin.locate(2) == (str(tmp_path / "a.xtc"), 2)
    assert origin.locate(3) == (str(tmp_path / "b.xtc"), 0)


def test_missing_file_gets_a_hint(tmp_path):
    make(tmp_path / "production.xtc", [0, 1])
    with pytest.raises(UsageError, match=r"prodution\.xtc; did you mean .*production\.xtc"):
        open_origin([tmp_path / "prodution.xtc"])
    with pytest.raises(UsageError, match=r"folder .* does not exist"):
        open_origin([tmp_path / "nowhere" / "a.xtc"])
    with pytest.raises(UsageError, match="no trajectory given"):
        open_origin([])


def test_no_trajectory(tmp_path):
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
