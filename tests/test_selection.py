"""Selections of atoms: those of an analysis, and what they read of frames."""

import json
import pickle

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach.atoms import Atoms
from himach.runner import run
from himach.selection import FrameList, chosen, find_steps, forward, frames_text, numbers_at, parse_frames, span
from himach.zazen import InMemory
from himach.zazen.node_frames import Remaining, frame_bitmaps

ascending = st.sets(st.integers(0, 60), min_size=1).map(sorted)


@given(numbers=ascending)
def test_a_choice_is_the_same_numbers_whatever_it_is_kept_as(numbers):
    frames = chosen(numbers, 61)
    assert list(frames) == numbers
    assert list(pickle.loads(pickle.dumps(frames))) == numbers
    assert isinstance(frames, range) == (len(set(np.diff(numbers))) < 2)
    steps = np.arange(len(numbers))
    assert numbers_at(frames, steps).tolist() == numbers
    assert find_steps(frames, np.array(numbers)).tolist() == steps.tolist()
    assert set(numbers) <= set(span(frames))
    assert forward(frames)
    assert list(frames[1:3]) == numbers[1:3]
    assert (frames[0], frames[-1]) == (numbers[0], numbers[-1])
    mask = np.isin(np.arange(61), numbers)
    assert list(chosen(mask, 61)) == list(chosen(mask.tolist(), 61)) == numbers
    assert list(chosen(np.array(numbers) - 61, 61)) == numbers, "from the end"


@given(numbers=ascending)
def test_a_choice_as_text_reads_back(numbers):
    assert parse_frames(frames_text(chosen(numbers, 61))).tolist() == numbers


@given(numbers=ascending, held=st.sets(st.integers(0, 60)), left=st.sets(st.integers(0, 60)))
def test_a_node_marks_what_it_holds_of_a_choice_and_of_what_is_left_of_it(numbers, held, left):
    frames = chosen(numbers, 61)
    mask = np.isin(numbers, sorted(left))
    for selection, wanted in ((frames, numbers), (Remaining.from_mask(frames, mask), np.array(numbers)[mask].tolist())):
        if not wanted:
            continue
        words = frame_bitmaps(InMemory(native=held), selection)[0]
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(wanted)]
        assert bits.tolist() == [number in held for number in wanted]


def test_texts():
    assert parse_frames("0, 5,10-12,20-30:5").tolist() == [0, 5, 10, 11, 12, 20, 25, 30]
    assert frames_text(range(0, 11, 5)) == "0-10:5"
    assert frames_text(FrameList(np.array([0, 3, 4, 5, 9]))) == "0,3-5,9"
    assert repr(FrameList(np.array([0, 3, 4]))) == "frames(0,3-4)"


@pytest.mark.parametrize("text", ["", "5-", "-5", "a", "1,,2", "10-5", "1-5:0", "1:2:3", "0x5", "1.5"])
def test_other_texts_are_refused(text):
    with pytest.raises(himach.UsageError, match="frames '"):
        parse_frames(text)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([5, 3], "must ascend, each once: 3 comes after 5"),
        ([3, 3], "must ascend"),
        ([0, -61], "must ascend"),
        ([61], "no frame 61; the trajectory has 61"),
        ([-62], "no frame -62"),
        ([], "none is selected"),
        ([False] * 61, "none is selected"),
        ([True] * 60, "needs 61 values, one for each frame, not 60"),
        ([0.5], "frame numbers or a boolean"),
        ([[1, 2]], "frame numbers or a boolean"),
        (["a"], "frame numbers or a boolean"),
    ],
)
def test_what_is_no_choice_is_refused(frames, said):
    with pytest.raises(himach.UsageError, match=said):
        chosen(frames, 61)


class Steps(himach.Analysis):
    """What frames and series say of themselves."""

    def map(self, frame):
        yield "one", (frame.number, frame.step, float(frame.universe.atoms.positions[0, 0]))

    def reduce(self, key, series):
        return {"told": list(series.values), "frames": series.frames.tolist(), "steps": series.steps.tolist()}

    def finish(self, results):
        return {**results["one"], "selected": list(self.frames), "dt": self.dt}


@pytest.mark.parametrize(
    ("frames", "several"),
    [([0, 3, 4, 7, -1], True), ([5], False), (np.arange(98) % 7 == 3, False), ("2-3,9", False)],
)
def test_a_run_over_frames_by_number_sees_those_of_mdanalysis(ranks, frames, several):
    trajectory = MDAnalysis.Universe(PSF, DCD).trajectory
    picked = parse_frames(frames) if isinstance(frames, str) else frames
    expected = [(ts.frame, step, float(ts.positions[0, 0])) for step, ts in enumerate(trajectory[picked])]
    result = himach.run(Steps(), DCD, PSF, frames=frames, ranks=ranks if several else None, cache="off")
    assert result["told"] == expected
    assert result["frames"] == result["selected"] == [number for number, _, _ in expected]
    assert result["steps"] == list(range(len(expected)))
    assert result.record["frames"] == len(expected)
    assert parse_frames(result.record["selected"]).tolist() == result["selected"]


def test_progress_is_shown_unless_it_is_not_to_be(monkeypatch):
    quiet = []
    here = run.run_here
    monkeypatch.setattr(run, "run_here", lambda world, job, *of: quiet.append(job.quiet) or here(world, job, *of))
    for progress in (True, False):
        himach.run(Steps(), DCD, PSF, progress=progress)
    assert quiet == [False, True]


@pytest.fixture(scope="module")
def universe():
    return MDAnalysis.Universe(PSF, DCD)


U = MDAnalysis.Universe(PSF, DCD)


@given(indices=st.lists(st.integers(0, 3340), min_size=1, max_size=30))
def test_a_group_is_told_of_so_that_the_same_atoms_in_the_same_order_come_back(indices):
    atoms = Atoms.from_value(U.atoms[indices])
    again = Atoms.from_value(json.loads(json.dumps(atoms.value)))
    assert again == atoms
    assert atoms.select(U, "x").ix.tolist() == again.select(U, "x").ix.tolist() == indices


def test_groups_as_text(universe):
    assert str(Atoms.from_value(universe.atoms[2:6])) == "index 2:5"
    assert str(Atoms.from_value(universe.atoms[[2, 3, 7]])) == "index 2:3 7"
    assert str(Atoms.from_value(universe.atoms[[7, 3]])) == "[7, 3]"
    assert str(Atoms.from_value(universe.residues[:1])) == "index 0:18"
    assert repr(Atoms.from_value(universe.atoms[::2])) == "<1671 atoms>", "not all of many"
    assert str(Atoms.from_value("  name CA ")) == "name CA"


@pytest.mark.parametrize("within", ["all", "resid 1:100", "resid 100:1 or resid 5"])
def test_updating_groups_stay_updating(universe, within):
    base = universe.atoms if within == "all" else universe.select_atoms("resid 1:100")
    group = base.select_atoms("around 3.5 resid 50", "name CA and prop x < 0", updating=True)
    atoms = Atoms.from_value(json.loads(json.dumps(Atoms.from_value(group).value)))
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
        ("Backbone", "token: 'Backbone'; selections are MDAnalysis's, such as 'backbone'"),
        ("group Backbone", "group: Backbone'; .* 'group NAME' is one of --index FILE"),
        ("", "cannot be used|selects none"),
        ("name CA and", "'name CA and' cannot be used as a selection: it ends where more is needed"),
        ("resname XYZ", "'resname XYZ' selects none of the 3341 atoms; set protein to"),
        ([5, 3341], "index 3341, and there are 3341 atoms"),
        ([], "selects none"),
    ],
)
def test_what_cannot_be_selected_is_named(universe, value, said):
    with pytest.raises(himach.UsageError, match=said):
        Atoms.from_value(value).select(universe, "protein")


def test_groups_that_cannot_be_told_of_are_refused(universe):
    helper = universe.atoms[:5]
    with pytest.raises(himach.UsageError, match="names other groups"):
        Atoms.from_value(universe.select_atoms("around 3 group helper", helper=helper, updating=True))
    other = MDAnalysis.Universe.empty(5).atoms
    with pytest.raises(himach.UsageError, match="Universe of 5 atoms, and that of the run has 3341"):
        Atoms.from_value(other).select(universe, "protein")
    for value in (5, None, 1.5, {"a": 1}, [1.5], universe.atoms[0].position):
        with pytest.raises(TypeError):
            Atoms.from_value(value)


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


@pytest.mark.parametrize("several", [False, True])
def test_a_run_has_groups_of_its_own_universe(universe, ranks, several):
    protein = universe.select_atoms("resid 1:20")[::-1]
    shell = universe.select_atoms("around 3.5 resid 1:20", updating=True)
    near = Near(protein=protein, shell=shell, ends=[universe.atoms[3:4], "index 7"])
    for _ in range(2):  # an instance may run again
        results = himach.run(near, universe, step=30, ranks=ranks if several else None, cache="off")
        entry = results.record["analyses"][0]["parameters"]
        assert entry == {
            "protein": protein.ix.tolist(),
            "shell": "updating around 3.5 resid 1:20",
            "ends": ["index 3", "index 7"],
        }
        assert json.loads(json.dumps(entry)) == entry
        expected = [(float(protein.positions.sum()), len(shell), [3, 7]) for _ in universe.trajectory[::30]]
        assert results["Near"]["result"] == expected
    assert near.settings()["shell"] == Atoms.from_value(shell)
    near.protein = "name N"
    assert str(near.settings()["protein"]) == "name N"


def test_parameters_of_a_command_line():
    parameters = Near.parameters()
    assert [parameters[name].type_name for name in ("protein", "shell", "ends")] == [
        "AtomGroup",
        "AtomGroup or None",
        "list of AtomGroup",
    ]
    assert parameters["protein"].parse("updating name O") == Atoms.from_value("updating name O")
    assert parameters["protein"].parse("[5, 3]") == Atoms(indices=(5, 3))
    assert parameters["shell"].parse("none") is None
    assert parameters["ends"].parse("name N,name O") == [Atoms.from_value("name N"), Atoms.from_value("name O")]
    with pytest.raises(himach.UsageError, match="parameter protein: 5 \\(int\\) is not an AtomGroup"):
        Near(protein=5)
    with pytest.raises(himach.UsageError, match=r"parameter protein: '\[1.5\]' is not an AtomGroup"):
        parameters["protein"].parse("[1.5]")
    with pytest.raises(himach.UsageError, match="Near: parameter protein: 'resname XYZ' selects none"):
        himach.run(Near(protein="resname XYZ"), DCD, PSF, stop=1, cache="off")


def test_lengths_have_units():
    """Exact numbers: 0.57 * 10 is not 5.7 in binary fractions."""
    water, rdf = (himach.examples.load(name) for name in ("water-residence", "rdf"))
    parse = water.parameters()["cutoff"].parse
    assert [parse(text) for text in ("0.57nm", "570 pm", "5.7Å", "5.7 A", "5.7")] == [5.7] * 5
    assert rdf(r_max="1.2 nm").r_max == 12
    with pytest.raises(himach.UsageError, match="'5A' is not an int"):
        rdf.parameters()["bins"].parse("5A")
    with pytest.raises(himach.UsageError, match="temperature: '30nm' is a length, and this is none"):
        himach.examples.load("dielectric")(temperature="30nm")
    assert himach.examples.load("rmsd")(selection="name CA").selection == "name CA"


def test_kept_pairs_know_their_groups(universe, tmp_path):
    def run(**parameters):
        result = himach.run(Near(**parameters), universe, stop=3, pairs=tmp_path, cache="off")
        return result.record["reused"]["frames"]

    assert run(protein=universe.select_atoms("name CB")) == 0
    assert run(protein=universe.select_atoms("name CB")) == 3
    assert run(protein="updating name CB") == 0
