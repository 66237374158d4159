"""Groups of atoms while himach computes parts: MDAnalysis's own answers, to the last bit."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.core.groups import AtomGroup, GroupBase
from MDAnalysisTests.datafiles import GRO, XTC

from himach.mdanalysis.groups import cached_groups


@pytest.fixture(scope="module")
def universe():
    return mda.Universe(GRO, XTC)


CHOSEN = {
    "all": lambda u: u.atoms,
    "protein": lambda u: u.select_atoms("protein"),
    "every third": lambda u: u.atoms[::3],
    "twice": lambda u: u.atoms[[4, 5, 5, 6]],
    "none": lambda u: u.atoms[[]],
    "one": lambda u: u.atoms[[7]],
    "updating": lambda u: u.select_atoms("around 3 protein", updating=True),
    "residues": lambda u: u.residues[10:40],
    "residues twice": lambda u: u.residues[[1, 1, 2]],
}
CENTERS = {
    "mean": lambda group: group.center(None),
    "geometry": lambda group: group.center_of_geometry(),
    "wrapped": lambda group: group.center(None, wrap=True),
    "masses": lambda group: group.center_of_mass(),
    "by residue": lambda group: group.center(None, compound="residues"),
    "refused": lambda group: group.center(None, compound="nothing"),
    "old": lambda group: group.center(None, pbc=True),
    "both": lambda group: group.center(None, wrap=True, unwrap=True),
}


def answer(ask, group):
    """Return what is answered, and what is warned of or raised."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = np.asarray(ask(group)).tobytes()
        except Exception as error:
            found = type(error), str(error)
    return found, [str(one.category) for one in heard]  # the text names variables of the caller


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("center", CENTERS)
def test_centers_are_the_same_bits(universe, chosen, center):
    for frame in (0, 3):
        universe.trajectory[frame]
        expected = answer(CENTERS[center], CHOSEN[chosen](universe))
        with cached_groups():
            assert answer(CENTERS[center], CHOSEN[chosen](universe)) == expected


@pytest.mark.parametrize("chosen", [name for name in CHOSEN if "residues" not in name])
def test_positions_are_copies_of_the_same_bits(universe, chosen):
    group = CHOSEN[chosen](universe)
    expected = group.positions
    with cached_groups():
        found = group.positions
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, expected)
        found += 1
        np.testing.assert_array_equal(group.positions, expected)
        group.positions = found
        if chosen not in ("twice", "updating"):
            np.testing.assert_array_equal(group.positions, found)
            group.positions = expected


def test_mdanalysis_is_as_it_was_afterwards(universe):
    before = AtomGroup.positions, GroupBase.center
    with pytest.raises(KeyError), cached_groups(), cached_groups():
        assert AtomGroup.positions is not before[0]
        assert GroupBase.center is not before[1]  # this numpy adds up rows as himach does
        raise KeyError
    assert (AtomGroup.positions, GroupBase.center) == before


def test_what_somebody_else_has_changed_is_left(universe, monkeypatch):
    mine = property(lambda group: "mine")
    monkeypatch.setattr(AtomGroup, "positions", mine)
    with cached_groups():
        assert AtomGroup.positions is mine
