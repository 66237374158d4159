"""MDAnalysis's analyses on ranks, to the last bit: their numbers, errors, refusals, and what helps their parts."""

import pickle
import sys
import textwrap
import warnings

import cloudpickle
import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis.base import AnalysisBase, AnalysisFromFunction
from MDAnalysis.analysis.results import Results, ResultsGroup
from MDAnalysis.analysis.rms import RMSD, RMSF
from MDAnalysis.core.groups import AtomGroup, GroupBase
from MDAnalysis.transformations import translate
from MDAnalysisTests.datafiles import GRO, TRR, XTC
from support import cache_data
from support.ranks import mpiexec

import himach
import himach.mdanalysis
from himach.mdanalysis import Backend
from himach.mdanalysis.analysis_parts import cached_groups
from himach.mdanalysis.dataset_names import open_url
from himach.mdanalysis.sending import strip_results


class Where(AnalysisBase):
    """Tells what it sees of each frame, and which reader it has."""

    _analysis_algorithm_is_parallelizable = True

    def __init__(self, atoms):
        super().__init__(atoms.universe.trajectory)
        self.atoms = atoms

    def _prepare(self):
        self.results.seen = []
        self.results.reader = [type(self._trajectory).__name__]

    def _single_frame(self):
        self.results.seen.append((self._ts.frame, self._ts.time, self._ts.dt, self.atoms.positions.copy()))

    def _get_aggregator(self):
        flat = ResultsGroup.flatten_sequence
        return ResultsGroup({"seen": flat, "reader": flat})


class HoldsBox(Where):
    """Keeps the array of the box as it was at first, which shows the box of the present frame, as DSSP does."""

    def __init__(self, atoms):
        super().__init__(atoms)
        self._box = atoms.universe.trajectory.ts.dimensions

    def _single_frame(self):
        self.results.seen.append(self._box.copy())


class Failing(Where):
    def _single_frame(self):
        if self._ts.frame == 7:
            raise KeyError("seven")


@pytest.fixture
def universe(tmp_path):
    return mda.Universe(*cache_data.make(tmp_path, 20))


def same(item, other):
    assert len(item) == len(other)
    for (*stamp, positions), (*other_stamp, other_positions) in zip(item, other, strict=True):
        assert stamp == other_stamp
        assert np.array_equal(positions, other_positions)


def check(universe, ranks=None, **selection):
    """Compare a run on ranks with one by MDAnalysis alone; return both."""
    analysis = himach.mdanalysis.run(Where(universe.atoms), ranks=ranks, **selection)
    expected = Where(universe.atoms).run(**selection)
    same(analysis.results.seen, expected.results.seen)
    return analysis, expected


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("selection", [{}, {"start": 3, "stop": 17, "step": 2}, {"frames": [5, 1, 1, 9, 2]}])
def test_ranks_see_the_frames_that_mdanalysis_sees(universe, ranks, selection):
    for _ in range(2):  # from the file, and from the store
        analysis, expected = check(universe, ranks, **selection)
        assert analysis.results.reader == ["HimachReader"] * 2
        assert np.array_equal(analysis.frames, expected.frames)
        assert np.array_equal(analysis.times, expected.times)


def test_backend_is_one_of_mdanalysis(universe, ranks):
    expected = RMSD(universe).run()
    analysis = RMSD(universe).run(backend=Backend(ranks), unsupported_backend=True)
    assert np.array_equal(analysis.results.rmsd, expected.results.rmsd)


@pytest.mark.parametrize("ranks", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_ranks_of_its_own_keep_frames_on_the_way(universe, ranks):
    check(universe, ranks)
    assert open_url(universe.trajectory.filename).cached.holds(np.arange(20)).all()


def test_several_find_each_frame_as_it_was_read(ranks):
    class All(Where):
        def _single_frame(self):
            ts = self._ts
            item = [ts.positions.sum(), ts.velocities.sum(), *ts.dimensions, ts.time, ts.frame, ts.data.get("mine", 0)]
            self.results.seen.append([float(value) for value in item])

    class Changing(All):
        def _single_frame(self):
            super()._single_frame()
            ts = self._ts
            ts.velocities *= 2
            ts.forces = ts.positions
            ts.dimensions = [1, 2, 3, 90, 90, 90]
            ts.time, ts.frame, ts.data["mine"] = -1, 7, 5

    moving = mda.Universe(GRO, TRR)
    several = [Changing(moving.atoms), All(moving.atoms)]
    himach.mdanalysis.run(several, ranks=ranks, cache="off")
    same(several[1].results.seen, several[0].results.seen)
    same(several[1].results.seen, All(moving.atoms).run().results.seen)


def test_a_negative_step_counts_its_frames(universe, ranks):
    analysis, _ = check(universe, ranks, step=-2)
    assert analysis.n_frames == len(analysis.results.seen) == 10


def test_transformations_are_applied_on_the_ranks(universe, ranks):
    universe.trajectory.add_transformations(translate([1, 2, 3]))
    check(universe, ranks)


def test_what_lies_in_memory_is_sent(universe, ranks):
    universe.transfer_to_memory()
    analysis, _ = check(universe, ranks)
    assert analysis.results.reader == ["MemoryReader"] * 2


def test_files_that_follow_one_another(tmp_path, ranks):
    topology, first = cache_data.make(tmp_path, 6)
    _, second = cache_data.make(tmp_path, 5, name="second.trr", seed=8)
    check(mda.Universe(topology, [first, second]), ranks)


def test_an_error_of_the_analysis_is_raised_as_it_was(universe, ranks):
    with pytest.raises(KeyError, match="seven") as raised:
        himach.mdanalysis.run(Failing(universe.atoms), ranks=ranks)
    assert "rank 0 of 2" in raised.value.__notes__[0]
    with pytest.raises(KeyError, match="seven"):
        himach.mdanalysis.run(Failing(universe.atoms))
    check(universe, ranks)


def test_functions_travel_by_their_code(universe, ranks):
    far = 3.0
    analysis = AnalysisFromFunction(lambda atoms: atoms.positions[0, 0] + far, universe.trajectory, universe.atoms)
    result = himach.mdanalysis.run(analysis, ranks=ranks).results.timeseries.copy()
    assert np.array_equal(result, analysis.run().results.timeseries)


def test_what_mdanalysis_refuses_is_refused(universe):
    with pytest.raises(himach.UsageError, match=r"RMSF cannot be divided among ranks.*its own run\(\)"):
        himach.mdanalysis.run(RMSF(universe.atoms))
    with pytest.raises(ValueError, match="cannot be combined"):
        himach.mdanalysis.run(Where(universe.atoms), start=1, frames=[2])
    with pytest.raises(himach.UsageError, match="no analysis of MDAnalysis"):
        himach.mdanalysis.run([cache_data.Emit()])
    with pytest.raises(himach.UsageError, match="1 or more"):
        himach.mdanalysis.run(Where(universe.atoms), ranks=0)


def test_no_frames_are_no_results(universe, ranks):
    assert himach.mdanalysis.run(Where(universe.atoms), start=5, stop=5, ranks=ranks).results.seen == []


def test_a_file_that_changed_is_read_anew(tmp_path, universe):
    himach.mdanalysis.run(Where(universe.atoms))
    check(mda.Universe(*cache_data.make(tmp_path, 20, seed=9)))


SCRIPT = """
import sys
import MDAnalysis as mda
from MDAnalysis.analysis.rms import RMSD
import himach.mdanalysis
universe = mda.Universe(*sys.argv[1:3])
analysis = himach.mdanalysis.run(RMSD(universe))
again = RMSD(universe).run(backend=himach.mdanalysis.Backend(), unsupported_backend=True)
assert (again.results.rmsd == analysis.results.rmsd).all()
print(analysis.results.rmsd.tobytes().hex() + "\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_under_mpiexec_each_process_is_a_rank(universe, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = mpiexec(2, [sys.executable, str(script), str(tmp_path / "top.gro"), str(tmp_path / "md.trr")])
    expected = RMSD(universe).run().results.rmsd
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert lines == [expected.tobytes().hex()] * 2


def test_what_an_analysis_holds_of_the_box_is_that_of_the_present_frame(ranks):
    expected = HoldsBox(mda.Universe(GRO, XTC).atoms).run().results.seen
    assert len({tuple(box) for box in np.asarray(expected)}) > 5
    for how in (None, ranks):
        result = himach.mdanalysis.run(HoldsBox(mda.Universe(GRO, XTC).atoms), ranks=how, cache="off").results.seen
        np.testing.assert_array_equal(result, expected)


@pytest.fixture(scope="module")
def adk():
    return mda.Universe(GRO, XTC)


CHOSEN = {
    "all": lambda u: u.atoms,
    "protein": lambda u: u.select_atoms("protein"),
    "twice": lambda u: u.atoms[[4, 5, 5, 6]],
    "none": lambda u: u.atoms[[]],
    "updating": lambda u: u.select_atoms("around 3 protein", updating=True),
    "residues": lambda u: u.residues[10:40],
}
CENTERS = {
    "mean": lambda group: group.center(None),
    "wrapped": lambda group: group.center(None, wrap=True),
    "masses": lambda group: group.center_of_mass(),
    "by residue": lambda group: group.center(None, compound="residues"),
    "refused": lambda group: group.center(None, compound="nothing"),
    "old": lambda group: group.center(None, pbc=True),
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
def test_centers_are_the_same_bits(adk, chosen, center):
    for frame in (0, 3):
        adk.trajectory[frame]
        expected = answer(CENTERS[center], CHOSEN[chosen](adk))
        with cached_groups():
            assert answer(CENTERS[center], CHOSEN[chosen](adk)) == expected


@pytest.mark.parametrize("chosen", [name for name in CHOSEN if "residues" not in name])
def test_positions_are_copies_of_the_same_bits(adk, chosen):
    group = CHOSEN[chosen](adk)
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


def test_mdanalysis_is_as_it_was_afterwards(adk):
    before = AtomGroup.positions, GroupBase.center
    with pytest.raises(KeyError), cached_groups(), cached_groups():
        assert AtomGroup.positions is not before[0]
        assert GroupBase.center is not before[1]  # this numpy adds up rows as himach does
        raise KeyError
    assert (AtomGroup.positions, GroupBase.center) == before


def test_what_somebody_else_has_changed_is_left(adk, monkeypatch):
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
