"""MDAnalysis's classes of analyses on ranks: all that it lets others take apart, and those that do not say."""

import importlib
import inspect
import pkgutil
import warnings

import MDAnalysis as mda
import MDAnalysis.analysis
import numpy as np
import pytest
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.rms import RMSF
from MDAnalysisTests.datafiles import DCD, GRO, PSF, RNA_PDB, RNA_PSF, XTC, waterDCD, waterPSF
from threadpoolctl import threadpool_limits

import himach
import himach.mdanalysis
from himach.adapted import _outcome, adapted
from himach.runner.scripts import find_class

BASES = {"donors_sel": "name OH2", "hydrogens_sel": "name H1 H2", "acceptors_sel": "name OH2"}
STRANDS = {"strand1": "segid RNAA and resid 5", "strand2": "segid RNAA and resid 9"}
NAMES = {"g_name": "GUA", "a_name": "ADE", "u_name": "URA", "t_name": "THY", "c_name": "CYT"}
#: Of each class that MDAnalysis lets others take apart: the files, and its parameters as text.
CLASSES = {
    "atomicdistances:AtomicDistances": ("adk", {"ag1": "name CA and resid 1-9", "ag2": "name CA and resid 2-10"}),
    "bat:BAT": ("adk", {"ag": "resid 1-3"}),
    "contacts:Contacts": (
        "adk",
        {"select": "('name NH* NZ', 'name OE* OD*')", "refgroup": "name NH* NZ; name OE* OD*"},
    ),
    "density:DensityAnalysis": ("adk", {"atomgroup": "name CA", "delta": 5.0}),
    "diffusionmap:DistanceMatrix": ("adk", {"select": "name CA"}),
    "dihedrals:Dihedral": ("adk", {"atomgroups": "resid 2 and name N CA C O; resid 3 and name N CA C O"}),
    "dihedrals:Janin": ("adk", {"atomgroup": "protein"}),
    "dihedrals:Ramachandran": ("adk", {"atomgroup": "protein"}),
    "dssp:DSSP": ("adk", {"atoms": "protein"}),
    "gnm:GNMAnalysis": ("adk", {}),
    "gnm:closeContactGNMAnalysis": ("adk", {"select": "resid 1-20"}),
    "hydrogenbonds:HydrogenBondAnalysis": ("water", BASES),
    "lineardensity:LinearDensity": ("water", {"select": "all", "binsize": 2.0}),
    "nucleicacids:MajorPairDist": ("rna", {**STRANDS, **NAMES}),
    "nucleicacids:MinorPairDist": ("rna", {**STRANDS, **NAMES}),
    "nucleicacids:NucPairDist": ("adk", {"selection1": "index 1; index 5", "selection2": "index 9; index 20"}),
    "nucleicacids:WatsonCrickDist": ("rna", {**STRANDS, **NAMES}),
    "polymer:PersistenceLength": ("adk", {"atomgroups": "name CA and resid 1-40; name CA and resid 41-80"}),
    "rdf:InterRDF": ("water", {"g1": "name OH2", "g2": "name H1", "nbins": 20}),
    "rdf:InterRDF_s": ("water", {"ags": "[['name OH2 and resid 1-9', 'name OH2 and resid 1-20']]", "nbins": 20}),
    "rms:RMSD": ("adk", {"atomgroup": "all", "select": "name CA"}),
}
REFUSED = {
    "AlignTraj", "AverageStructure", "DielectricConstant", "HELANAL", "WaterBridgeAnalysis", "EinsteinMSD", "PCA",
    "RMSF",
}  # fmt: skip
FRAMES = 7


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rna = mda.Universe(RNA_PSF, RNA_PDB)
    random = np.random.default_rng(3)
    with mda.Writer(str(folder / "rna.dcd"), rna.atoms.n_atoms) as writer:
        for _ in range(FRAMES):
            rna.atoms.positions += random.normal(0, 0.1, (rna.atoms.n_atoms, 3))
            writer.write(rna.atoms)
    return {"adk": (PSF, DCD), "water": (waterPSF, waterDCD), "rna": (RNA_PSF, str(folder / "rna.dcd"))}


@pytest.fixture(scope="module")
def ranks():
    """Return ranks by their number; and let MDAnalysis itself have one thread of BLAS, as these have."""
    with threadpool_limits(1, "blas"), himach.Ranks(2) as two, himach.Ranks(3) as three:
        yield {1: None, 2: two, 3: three}


def every_class(base=AnalysisBase):
    for item in base.__subclasses__():
        if item.__module__.startswith("MDAnalysis."):
            yield item
            yield from every_class(item)


def test_these_are_all_classes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(MDAnalysis.analysis.__path__, "MDAnalysis.analysis."):
            importlib.import_module(module.name)
    names = {spec.partition(":")[2] for spec in CLASSES} | {"AnalysisFromFunction"}
    assert {item.__name__ for item in every_class() if item._analysis_algorithm_is_parallelizable} == names
    assert {item.__name__ for item in every_class() if not item._analysis_algorithm_is_parallelizable} == REFUSED


def as_bytes(outcome):
    """Return an outcome as bytes, in the order of names."""
    if isinstance(outcome, dict):
        return [(name, as_bytes(outcome[name])) for name in sorted(outcome)]
    if isinstance(outcome, list):
        return [as_bytes(item) for item in outcome]
    array = np.asarray(outcome)
    return str(array.dtype), array.shape, array.tobytes() if array.dtype != object else array.tolist()


def instance(spec, topology, trajectory):
    """Return an analysis as a user of MDAnalysis makes it."""
    universe = mda.Universe(topology, trajectory)
    cls, parameters = find_class(f"MDAnalysis.analysis.{spec}"), CLASSES[spec][1]
    arguments = {each.parameter.name: each for each in cls.arguments}
    values = {name: arguments[name].value(text, universe) for name, text in parameters.items()}
    takes = [name for name in ("u", "universe") if name in inspect.signature(cls.foreign).parameters]
    return cls.foreign(**dict.fromkeys(takes, universe), **values)


@pytest.mark.nightly(but=["water"])
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["adk", "water", "rna"])
def test_any_ranks_give_what_mdanalysis_gives(kind, files, ranks, tmp_path):
    specs = {spec.partition(":")[2]: spec for spec, (files_of, _) in CLASSES.items() if files_of == kind}
    options = {"stop": FRAMES, "cache": str(tmp_path), "progress": False}

    def instances(names):
        return [instance(specs[name], *files[kind]) for name in names]

    def results(analyses):
        return {type(item).__name__: as_bytes(_outcome(item.results, type(item).__name__)) for item in analyses}

    def named(n):
        analyses = [find_class(f"MDAnalysis.analysis.{spec}")(**CLASSES[spec][1]) for spec in specs.values()]
        computed = himach.run(analyses, *files[kind][::-1], ranks=ranks[n], **options)
        return {name: as_bytes(computed.outcome[name]) for name in specs}

    def passed(n):
        return results(himach.mdanalysis.run(instances(specs), ranks=ranks[n], **options))

    def check(computed, parts):
        """Compare with serial's results, or, where these differ, with those of multiprocessing."""
        other = instances([name for name in specs if computed[name] != serial[name]])
        parallel = {"backend": "multiprocessing", "n_workers": 2, "n_parts": parts}
        for name, result in results([item.run(stop=FRAMES, **parallel) for item in other]).items():
            assert computed[name] == result, name

    serial, first = results([item.run(stop=FRAMES) for item in instances(specs)]), named(1)
    check(first, FRAMES)
    for n in (1, 2, 3):
        assert [named(n), named(n)] == [first] * 2
        computed = passed(n)
        check(computed, n)
        assert passed(n) == computed


class Untold(AnalysisBase):
    """What analyses do that were written before MDAnalysis knew parts; each test has one of it do more."""

    def __init__(self, atomgroup, labels=None, **kwargs):
        super().__init__(atomgroup.universe.trajectory, **kwargs)
        self.ag, self.labels = atomgroup, np.arange(100) if labels is None else labels

    def _prepare(self):
        self.reference = self.ag.positions
        self._places = np.zeros((3, self.n_frames, self.ag.n_atoms))
        self._matrices = np.zeros(self.n_frames, dtype=object)
        self._rows, self._names, self._last, self._buffer = [], None, None, np.zeros(3)
        self.results.radius = np.full(self.n_frames, np.nan)
        self.results.failed = 0
        self._total, self._mean = np.zeros(3), np.zeros((self.ag.n_atoms, 3))

    def _single_frame(self):
        i = self._frame_index
        self.ag.positions += 1  # of this frame only
        self._places[:, i] = self.ag.positions.T
        self._matrices[i] = {"label": self.labels[i]}
        self._rows.append([self._ts.frame, float(np.abs(self.ag.positions - self.reference).max())])
        self._buffer[:] = self.ag.positions[0]
        self.results.radius[i] = self.ag.radius_of_gyration()
        self._last = self._ts.frame
        if self._names is None:
            self._names = [atom.name for atom in self.ag]

    def _conclude(self):
        self.results.spread = np.fft.fft(self._places, axis=1).real.std(axis=1)  # of all frames together
        self.results.rows, self.results.names = np.array(self._rows), list(self._names)
        self.results.labels = [int(item["label"]) for item in self._matrices]
        self.results.last, self.results.buffer = self._last, self._buffer


def alone(cls):
    return cls(mda.Universe(GRO, XTC).select_atoms("name CA and resid 1-9")).run(stop=FRAMES).results


def on(ranks, cls, **options):
    analysis = adapted(cls)(atomgroup="name CA and resid 1-9")
    return himach.run(analysis, XTC, GRO, stop=FRAMES, ranks=ranks, cache="off", **options).outcome


@pytest.mark.parametrize("ranks", [None, 2, 3])
def test_any_ranks_give_what_it_gives_alone(ranks):
    expected, computed = alone(Untold), on(ranks, Untold)
    computed = {
        **computed,
        **{name: computed["Untold"][name] for name in ("radius", "labels")},
    }  # columns of one length
    for name in ("radius", "labels", "rows", "spread", "buffer"):
        assert np.array_equal(computed[name], expected[name]), name
    assert list(computed["names"]) == expected.names
    assert (computed["last"], computed["failed"]) == (expected.last, 0)


def add_up(self):
    self._total += self.ag.positions[0]


def count(self):
    self.results.failed += 1


def average(self):
    """Update a mean, which after the first frame is that frame, however often that is taken."""
    i = self._frame_index
    self._mean = (i * self._mean + self.ag.positions) / (i + 1)


def compare_with_the_frame_before(self):
    self.results.radius[self._frame_index] = np.abs(self.ag.positions - self._mean).max()
    self._mean = self.ag.positions


def write_to_the_frame_before(self):
    self.results.radius[self._frame_index - 1] = 0


def count_late_frames(self):
    if self._frame_index == FRAMES - 2:
        self.results.failed += 1


@pytest.mark.nightly(but=4)
@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize(
    ("step", "by"),
    [
        (add_up, "_total"),
        (count, "results.failed"),
        (average, "_mean"),
        (compare_with_the_frame_before, "results.radius"),
        (write_to_the_frame_before, "results.radius"),
        (count_late_frames, "results.failed"),
    ],
)
def test_frames_that_depend_on_each_other_are_refused(step, by, ranks):
    class Dependent(Untold):
        def _single_frame(self):
            super()._single_frame()
            step(self)

    with pytest.raises(himach.AnalysisError, match=rf"its frames depend on each other by {by} .*by itself"):
        on(ranks, Dependent)


def test_what_says_so_or_runs_otherwise_is_refused_at_once():
    class Own(Untold):
        def run(self):
            return self

    class Says(Untold):
        _analysis_algorithm_is_parallelizable = False

    for cls, why in ((Own, "a run\\(\\) of its own"), (Says, "depend on each other"), (RMSF, "depend on each other")):
        with pytest.raises(himach.UsageError, match=why):
            adapted(cls)
