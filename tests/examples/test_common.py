import warnings

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis.lib.mdamath import triclinic_vectors

import himach
from himach.examples.common import box_vectors, lag_times, select
from himach.examples.liquids.msd import Msd
from himach.examples.molecules import warn_of_cut_molecules
from himach.transformations import find_bonds

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


def chain(box):
    """Return a Universe of a chain of four atoms, the last of which lies behind the boundary, and a lone pair."""
    universe = MDAnalysis.Universe.empty(6, 2, atom_resindex=[0, 0, 0, 0, 1, 1], trajectory=True)
    for name, values in (("names", ["C"] * 6), ("types", ["C"] * 6), ("masses", [12.0] * 6), ("resids", [1, 2])):
        universe.add_TopologyAttr(name, values)
    universe.add_TopologyAttr("bonds", [(0, 1), (1, 2), (2, 3)])
    universe.atoms.positions = [[17, 5, 5], [18, 5, 5], [19, 5, 5], [0.2, 5, 5], [9, 9, 9], [9, 9, 10.2]]
    universe.dimensions = box
    return universe


def test_molecules_that_the_boundary_cuts_are_warned_of():
    universe = chain([20, 20, 20, 90, 90, 90])
    with pytest.warns(UserWarning, match=r"1 bonds of the first frame are longer than half the box; .*--whole"):
        warn_of_cut_molecules(analysis(2, 1.0), universe.atoms[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_cut_molecules(analysis(2, 1.0), universe.atoms[4:])


def test_bonds_of_residues_that_have_none_are_guessed_and_said():
    universe = chain([20, 20, 20, 90, 90, 90])
    with pytest.warns(UserWarning, match="no bonds of 1 residues, such as residue 2"):
        bonds = find_bonds(universe.atoms)
    assert {tuple(bond) for bond in bonds.tolist()} == {(0, 1), (1, 2), (2, 3), (4, 5)}


def test_a_selection_of_other_atoms_in_each_frame_is_refused():
    made = analysis(2, 1.0)
    made.selection = "updating prop x > 5"
    with pytest.raises(himach.UsageError, match="selects other atoms in each frame"):
        select(chain([20, 20, 20, 90, 90, 90]), made, "selection")


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
