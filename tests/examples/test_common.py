import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis.lib.mdamath import triclinic_vectors

import himach
from himach.examples.common import box_vectors, lag_times
from himach.examples.liquids.msd import Msd

length = st.floats(1, 200)
angle = st.sampled_from([90.0, 60.0, 75.5, 109.4712206])


def analysis(n_frames, dt):
    made = Msd()
    made.frames, made.dt = range(n_frames), dt
    return made


@given(st.tuples(length, length, length), st.sampled_from([(90, 90, 90), (60, 60, 90), (80, 75, 70), (90, 109.5, 90)]))
def test_box_vectors_are_mdanalysis(lengths, angles):
    box = np.array([*lengths, *angles], dtype=np.float32)
    expected = triclinic_vectors(box, dtype=np.float64)
    assert expected.any()
    np.testing.assert_allclose(box_vectors([box, box])[1], expected, rtol=1e-6, atol=1e-9 * max(lengths))


def test_lag_times():
    assert lag_times(analysis(10, 0.5), 3).tolist() == [0, 0.5, 1, 1.5]


def test_lags_are_positive_where_the_selection_runs_backwards():
    assert lag_times(analysis(10, -0.5), 2).tolist() == [0, 0.5, 1]


def test_longer_than_the_trajectory():
    with pytest.warns(UserWarning, match="tau_max=20 is cut to 2, 3 frames"):
        assert lag_times(analysis(3, 2.0), 20).tolist() == [0, 2, 4]


def test_one_frame_has_the_lag_zero():
    with pytest.warns(UserWarning, match="cut to 0"):
        assert lag_times(analysis(1, None), 5).tolist() == [0]


def test_uneven_frames():
    with pytest.raises(himach.UsageError, match="dt of the selected frames is uneven"):
        lag_times(analysis(10, None), 5)


def test_negative():
    with pytest.raises(himach.UsageError, match="tau_max must be 0 or more"):
        lag_times(analysis(10, 1.0), -1)
