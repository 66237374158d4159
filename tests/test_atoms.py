"""Atoms as parameters: as they are given, as they are told of, as they are in setup() and map()."""

import json

import MDAnalysis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach.atoms import Atoms


@pytest.fixture(scope="module")
def universe():
    return MDAnalysis.Universe(PSF, DCD)


U = MDAnalysis.Universe(PSF, DCD)


@given(indices=st.lists(st.integers(0, 3340), min_size=1, max_size=30))
def test_a_group_is_told_of_so_that_the_same_atoms_in_the_same_order_come_back(indices):
    atoms = Atoms.of(U.atoms[indices])
    again = Atoms.of(json.loads(json.dumps(atoms.value)))
    assert again == atoms
    assert atoms.select(U, "x").ix.tolist() == again.select(U, "x").ix.tolist() == indices


def test_groups_as_text(universe):
    assert str(Atoms.of(universe.atoms[2:6])) == "index 2:5"
    assert str(Atoms.of(universe.atoms[[2, 3, 7]])) == "index 2:3 7"
    assert str(Atoms.of(universe.atoms[[7, 3]])) == "[7, 3]"
    assert str(Atoms.of(universe.residues[:1])) == "index 0:18"
    assert repr(Atoms.of(universe.atoms[::2])) == "<1671 atoms>", "not all of many"
    assert str(Atoms.of("  name CA ")) == "name CA"


@pytest.mark.parametrize("within", ["all", "resid 1:100", "resid 100:1 or resid 5"])
def test_updating_groups_stay_updating(universe, within):
    base = universe.atoms if within == "all" else universe.select_atoms("resid 1:100")
    group = base.select_atoms("around 3.5 resid 50", "name CA and prop x < 0", updating=True)
    atoms = Atoms.of(json.loads(json.dumps(Atoms.of(group).value)))
    again = atoms.select(universe, "x")
    sizes = set()
    for _ in universe.trajectory[::20]:
        assert again.ix.tolist() == group.ix.tolist()
        sizes.add(len(again))
    assert len(sizes) > 1, "it does not update"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("nmae CA", "parameter protein: 'nmae CA' cannot be used as a selection"),
        ("", "cannot be used|selects none"),
        ("name CA and", "'name CA and' cannot be used as a selection: it ends where more is needed"),
        ("resname XYZ", "'resname XYZ' selects none of the 3341 atoms; set protein to"),
        ([5, 3341], "index 3341, and there are 3341 atoms"),
        ([], "selects none"),
    ],
)
def test_what_cannot_be_selected_is_named(universe, value, said):
    with pytest.raises(himach.UsageError, match=said):
        Atoms.of(value).select(universe, "protein")


def test_groups_that_cannot_be_told_of_are_refused(universe):
    helper = universe.atoms[:5]
    with pytest.raises(himach.UsageError, match="names other groups"):
        Atoms.of(universe.select_atoms("around 3 group helper", helper=helper, updating=True))
    other = MDAnalysis.Universe.empty(5).atoms
    with pytest.raises(himach.UsageError, match="Universe of 5 atoms, and that of the run has 3341"):
        Atoms.of(other).select(universe, "protein")
    for value in (5, None, 1.5, {"a": 1}, [1.5], universe.atoms[0].position):
        with pytest.raises(TypeError):
            Atoms.of(value)


class Near(himach.Analysis):
    """Counts atoms.

    Parameters
    ----------
    protein
        The atoms to count.
    shell
        More atoms.
    """

    protein: himach.AtomGroup = "name CA"
    shell: MDAnalysis.AtomGroup | None = None
    ends: list[himach.AtomGroup] = []  # noqa: RUF012

    def setup(self, universe):
        assert all(group.universe is universe for group in (self.protein, *self.ends))

    def map(self, frame):
        ends = [int(group.ix[0]) for group in self.ends]
        shell = -1 if self.shell is None else len(self.shell)
        yield frame.number, (float(self.protein.positions.sum()), shell, ends)

    def reduce(self, key, series):
        return series.values[0]


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_run_has_groups_of_its_own_universe(universe, ranks):
    protein = universe.select_atoms("resid 1:20")[::-1]
    shell = universe.select_atoms("around 3.5 resid 1:20", updating=True)
    near = Near(protein=protein, shell=shell, ends=[universe.atoms[3:4], "index 7"])
    for _ in range(2):  # an instance may run again
        results = himach.run(near, universe, step=30, ranks=ranks, cache="off")
        entry = results.record["analyses"][0]["parameters"]
        assert entry == {
            "protein": protein.ix.tolist(),
            "shell": "updating around 3.5 resid 1:20",
            "ends": ["index 3", "index 7"],
        }
        assert json.loads(json.dumps(entry)) == entry
        expected = [(float(protein.positions.sum()), len(shell), [3, 7]) for _ in universe.trajectory[::30]]
        assert results["Near"]["result"] == expected
    assert near.settings()["shell"] == Atoms.of(shell)
    near.protein = "name N"
    assert str(near.settings()["protein"]) == "name N"


def test_parameters_of_a_command_line():
    parameters = Near.parameters()
    assert [parameters[name].type_name for name in ("protein", "shell", "ends")] == [
        "AtomGroup",
        "AtomGroup or None",
        "list of AtomGroup",
    ]
    assert parameters["protein"].parse("updating name O") == Atoms.of("updating name O")
    assert parameters["protein"].parse("[5, 3]") == Atoms(indices=(5, 3))
    assert parameters["shell"].parse("none") is None
    assert parameters["ends"].parse("name N,name O") == [Atoms.of("name N"), Atoms.of("name O")]
    with pytest.raises(himach.UsageError, match="parameter protein: 5 \\(int\\) is not an AtomGroup"):
        Near(protein=5)
    with pytest.raises(himach.UsageError, match=r"parameter protein: '\[1.5\]' is not an AtomGroup"):
        parameters["protein"].parse("[1.5]")
    with pytest.raises(himach.UsageError, match="Near: parameter protein: 'resname XYZ' selects none"):
        himach.run(Near(protein="resname XYZ"), DCD, PSF, stop=1, cache="off")


def test_kept_pairs_know_their_groups(universe, tmp_path):
    def run(**parameters):
        result = himach.run(Near(**parameters), universe, stop=3, pairs=tmp_path, cache="off")
        return result.record["reused"]["frames"]

    assert run(protein=universe.select_atoms("name CB")) == 0
    assert run(protein=universe.select_atoms("name CB")) == 3
    assert run(protein="updating name CB") == 0
