"""What helps parts of analyses: positions and centres of groups, results in few pieces, to the last bit."""

import pickle
import warnings

import cloudpickle
import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis.results import Results
from MDAnalysis.core.groups import AtomGroup, GroupBase
from MDAnalysisTests.datafiles import GRO, XTC

from himach.mdanalysis.parts import cached_groups
from himach.mdanalysis.sending import strip_results


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
            result = np.asarray(ask(group)).tobytes()
        except Exception as error:
            result = type(error), str(error)
    return result, [str(item.category) for item in heard]  # the text names variables of the caller


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
        result = group.positions
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, expected)
        result += 1
        np.testing.assert_array_equal(group.positions, expected)
        group.positions = result
        if chosen not in ("twice", "updating"):
            np.testing.assert_array_equal(group.positions, result)
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


RANDOM = np.random.default_rng(5)
FLOATS = list(RANDOM.normal(size=1200))


def nested(items, *kinds):
    for kind, length in reversed(kinds):
        items = [kind(items[i : i + length]) for i in range(0, len(items), length)]
    return items


def as_bytes(value):
    """Return all of a value that somebody can see: types, bits, order."""
    if isinstance(value, list | tuple):
        return type(value), [as_bytes(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, np.shape(value), value.tobytes()
    return type(value), value


VALUES = {
    "numbers": FLOATS,
    "tuples": nested(FLOATS, (tuple, 2)),
    "of lists of tuples": nested(FLOATS, (list, 30), (tuple, 2)),
    "integers": [*map(np.int64, range(-50, 50))],
    "single": [*map(np.float32, FLOATS)],
    "truth": [np.bool_(item > 0) for item in FLOATS],
    "no numbers": [np.float64(bits) for bits in np.full(99, 0x7FF8DEAD00000001).view(np.float64)] + [np.float64(-0.0)],
    "of several types": [FLOATS, [*map(np.int64, range(300))], [1.5] * 300],
    "mixed": [*FLOATS, 1.5],
    "of uneven length": [FLOATS[:70], FLOATS[70:200]],
    "some empty": [[], FLOATS, []],
    "all empty": [[], []],
    "empty": [],
    "few": FLOATS[:3],
    "floats": [1.5] * 300,
    "arrays": [RANDOM.normal(size=(3, 2)) for _ in range(90)],
    "an array": np.arange(9),
    "names": ["a"] * 100,
    "words": {"a": FLOATS},
    "long double": [*map(np.longdouble, range(99))],
}


@pytest.mark.parametrize("name", VALUES)
def test_what_arrives_is_what_was_sent(name):
    results = Results({"value": VALUES[name], "other": 1})
    result = pickle.loads(cloudpickle.dumps(strip_results(results)))
    assert type(result) is Results
    assert as_bytes(result["value"]) == as_bytes(VALUES[name])
    assert result["other"] == 1
    assert results["value"] is VALUES[name]


def test_many_numbers_travel_as_an_array():
    many = pickle.dumps(strip_results(Results({"angles": VALUES["of lists of tuples"]})))
    assert len(many) < 8 * len(FLOATS) + 1000


def test_results_of_another_class_are_left():
    class Mine(Results):
        pass

    mine = Mine({"value": FLOATS})
    assert strip_results(mine) is mine
