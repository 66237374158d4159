"""All of MDAnalysis's classes of analyses, by their names and as instances, on one, two and three ranks, twice each."""

import importlib
import inspect
import pkgutil
import warnings

import MDAnalysis as mda
import MDAnalysis.analysis
import numpy as np
import pytest
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysisTests.datafiles import DCD, PSF, RNA_PDB, RNA_PSF, waterDCD, waterPSF
from threadpoolctl import threadpool_limits

import himach
import himach.mdanalysis
from himach.adapted import _outcome
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
    "AlignTraj",
    "AverageStructure",
    "DielectricConstant",
    "HELANAL",
    "WaterBridgeAnalysis",
    "EinsteinMSD",
    "PCA",
    "RMSF",
}
FRAMES = 7


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return topology and trajectory by name."""
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
    for one in base.__subclasses__():
        if one.__module__.startswith("MDAnalysis."):
            yield one
            yield from every_class(one)


def test_these_are_all_classes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(MDAnalysis.analysis.__path__, "MDAnalysis.analysis."):
            importlib.import_module(module.name)
    names = {spec.partition(":")[2] for spec in CLASSES} | {"AnalysisFromFunction"}
    assert {one.__name__ for one in every_class() if one._analysis_algorithm_is_parallelizable} == names
    assert {one.__name__ for one in every_class() if not one._analysis_algorithm_is_parallelizable} == REFUSED


def seen(outcome):
    """Return an outcome as bytes, in the order of names."""
    if isinstance(outcome, dict):
        return [(name, seen(outcome[name])) for name in sorted(outcome)]
    if isinstance(outcome, list):
        return [seen(one) for one in outcome]
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
        return {type(one).__name__: seen(_outcome(one.results, type(one).__name__)) for one in analyses}

    def named(n):
        analyses = [find_class(f"MDAnalysis.analysis.{spec}")(**CLASSES[spec][1]) for spec in specs.values()]
        found = himach.run(analyses, *files[kind][::-1], ranks=ranks[n], **options)
        return {name: seen(found.outcome[name]) for name in specs}

    def passed(n):
        return results(himach.mdanalysis.run(instances(specs), ranks=ranks[n], **options))

    def check(found, parts):
        """Compare with serial's results, or, where these differ, with those of multiprocessing."""
        other = instances([name for name in specs if found[name] != serial[name]])
        parallel = {"backend": "multiprocessing", "n_workers": 2, "n_parts": parts}
        for name, result in results([one.run(stop=FRAMES, **parallel) for one in other]).items():
            assert found[name] == result, name

    serial, first = results([one.run(stop=FRAMES) for one in instances(specs)]), named(1)
    check(first, FRAMES)
    for n in (1, 2, 3):
        assert [named(n), named(n)] == [first] * 2
        found = passed(n)
        check(found, n)
        assert passed(n) == found
