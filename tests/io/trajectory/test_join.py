import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.io_samples import copied, make

from himach.errors import TrajectoryError
from himach.io.trajectory.origin import open_origin


def times(origin):
    return [round(frame.time, 4) for frame in origin.read(range(origin.n_frames))]


def test_numbers_run_through(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        origin = open_origin([make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.trr", [3, 4])])
    assert times(origin) == [0, 1, 2, 3, 4]
    assert [frame.number for frame in origin.read([4, 1])] == [4, 1]
    assert origin.dt(range(5)) == 1
    assert origin.paths == (str(tmp_path / "a.xtc"), str(tmp_path / "b.trr"))


def test_frames_written_again_are_dropped(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2, 3, 4]), make(tmp_path / "b.xtc", [3, 4, 5])]
    with pytest.warns(UserWarning, match=r"2 frames of .*a\.xtc, from 3 ps on, dropped: .*b\.xtc"):
        origin = open_origin(paths)
    assert times(origin) == [0, 1, 2, 3, 4, 5]
    assert origin.locate(3) == (str(tmp_path / "b.xtc"), 0)


def test_a_restart_that_ends_earlier(tmp_path):
    """What the earlier file has beyond its end belongs to another course of the simulation."""
    paths = [make(tmp_path / "a.xtc", [0, 1, 2, 3, 4, 5]), make(tmp_path / "b.xtc", [3, 4])]
    with pytest.warns(UserWarning, match=r"3 frames of .*b\.xtc begins anew there, though it ends at 4 ps .* to 5 ps"):
        origin = open_origin(paths)
    assert times(origin) == [0, 1, 2, 3, 4]


def test_one_frame_written_again_in_float32(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0.1 * i for i in range(8)]), make(tmp_path / "b.trr", [0.7 + 1e-8, 0.8])]
    with pytest.warns(UserWarning, match=r"1 frame of .*a\.xtc, from 0\.7 ps on"):
        assert open_origin(paths).n_frames == 9


def test_three_files(tmp_path):
    paths = [make(tmp_path / f"{i}.xtc", list(range(2 * i, 2 * i + 4))) for i in range(3)]
    with pytest.warns(UserWarning, match="dropped"):
        assert times(open_origin(paths)) == list(range(8))


def test_files_out_of_order(tmp_path):
    a, b = make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [3, 4])
    with pytest.raises(TrajectoryError, match=r"a\.xtc begins at 0 ps .* b?.*b\.xtc, at 3 ps"):
        open_origin([b, a])


def test_time_runs_backwards_within_a_file(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1, 2, 1.5, 3])
    with pytest.raises(TrajectoryError, match=r"a\.xtc: .*from 2 ps to 1\.5 ps at frame 3"):
        open_origin([path])
    assert open_origin([path], keywords={"dt": 1.0}).n_frames == 5


def test_other_atoms(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0]), make(tmp_path / "b.xtc", [1], n_atoms=41)]
    with pytest.raises(TrajectoryError, match=r"a\.xtc has 40 atoms, .*b\.xtc has 41"):
        open_origin(paths)


def test_formats_without_times_follow_one_another(tmp_path):
    _, first = copied("XYZ", tmp_path / "a")
    _, second = copied("XYZ", tmp_path / "b")
    origin = open_origin([first, second])
    assert times(origin) == list(range(20))


def test_formats_whose_times_are_read(tmp_path):
    topology, first = copied("DCD", tmp_path / "a")
    _, second = copied("DCD", tmp_path / "b")
    with pytest.warns(UserWarning, match="98 frames of .* dropped"):
        assert open_origin([first, second], topology).n_frames == 98


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=st.lists(st.integers(0, 12), min_size=1, max_size=4), lengths=st.lists(st.integers(1, 8), min_size=4))
def test_joined_times_are_those_of_the_latest_files(tmp_path, starts, lengths):
    starts = sorted(starts)
    runs = [list(range(start, start + length)) for start, length in zip(starts, lengths, strict=False)]
    paths = [make(tmp_path / f"{i}.xtc", run) for i, run in enumerate(runs)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            origin = open_origin(paths)
        except TrajectoryError as error:
            assert "runs backwards" in str(error)
            return
    expected: list[int] = []
    for run in runs:
        expected = [time for time in expected if time < run[0]] + run
    assert times(origin) == expected
