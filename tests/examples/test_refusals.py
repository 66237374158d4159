"""The built-in analyses: their tables and plots; mistakes in parameters, and in files, are named at the first frame."""

import matplotlib.pyplot as plt
import pytest
from MDAnalysisTests import datafiles as data
from support import plain
from support.sample_runs import BUILTIN_RUNS, builtin_tables

import himach
from himach.examples import BUILTINS, SAMPLES, load, sample

ADK, WATER = (data.DCD, data.PSF), (data.XTC, data.GRO)
ARGON, KCSA, MEMBRANE, NANOPORE, SPCE_WATER, VILLIN = map(
    sample, ("argon", "kcsa", "membrane", "nanopore", "water", "villin")
)
SPCE = ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]
BRIDGES = {"bridges": 1, "tau_max": 1}
DONORS = {"donors": "name O", "hydrogens": "name H1 H2", "acceptors": "name O CL"}
SAME_WATER = {"a": "resname HOH and resid 50", "b": "resname HOH and resid 50 and name O"}
#: Analysis and files -> parameters, and the message.
REFUSED = {
    ("clusters", ADK): [
        ({"cutoff": 0.0}, "clusters: cutoff must be greater than 0"),
        ({"centers": -1}, "clusters: centers must be 0 or more"),
        ({"selection": "name NONE"}, "clusters: parameter selection"),
        ({"fit": "name NONE"}, "clusters: parameter fit"),
    ],
    ("geometry", VILLIN): [
        ({}, "geometry: give at least one of distances, angles, dihedrals, minimum"),
        ({"distances": ["index 1 2 3"]}, "parameter distances: 'index 1 2 3': 3 atoms; select 2, or give 2 selections"),
        ({"angles": ["index 1; index 2"]}, "parameter angles: 'index 1; index 2': 2 selections; give 3 with ; between"),
        ({"minimum": ["index 1 2"]}, "parameter minimum: 'index 1 2': 1 selections; give 2 with ; between"),
        ({"minimum": ["index 1:5; index 5:9"]}, "an atom is in both selections"),
        ({"distances": ["resname XYZ; index 2"]}, "geometry: parameter distances"),
        (
            {"distances": ["d=index 1 2", "d=index 2 3"]},
            "parameter distances: 'd=index 2 3': another column is called 'd'",
        ),
        ({"angles": ["time_ps=index 1 2 3"]}, "another column is called 'time_ps'"),
        ({"dihedrals": ["chi5:resname GLY"]}, "'chi5:resname GLY': none of 2 residues has chi5"),
        ({"dihedrals": ["zeta:protein"]}, "geometry: parameter dihedrals"),
    ],
    ("pca", ADK): [
        ({"components": 0}, "pca: components must be greater than 0"),
        ({"bins": 0}, "pca: bins must be greater than 0"),
        ({"selection": "name NONE"}, "pca: parameter selection"),
        ({"fit": "name NONE"}, "pca: parameter fit"),
    ],
    ("rmsd", ADK): [
        ({"reference": "none.pdb"}, "rmsd: reference 'none.pdb' is no file, nor the number of a frame"),
        ({"reference": str(data.GRO), "selection": "protein"}, "has other atoms of selection: H1 of residue 1 where"),
        (
            {"reference": str(data.GRO), "selection": "name OW O*"},
            "atoms of selection 'name OW O[*]', the trajectory has 3",
        ),
        ({"reference": str(data.PSF)}, f"rmsd: reference '{data.PSF}'"),
        ({"fit": "name XX"}, "rmsd: parameter fit: 'name XX' selects none"),
        ({"groups": ["a=name CA", "a=name CB"]}, "rmsd: two groups are called 'a'"),
        ({"groups": ["rmsd=name CA"]}, "rmsd: a group cannot be called 'rmsd'"),
        ({"groups": ["core=nam CA"]}, "rmsd: parameter groups: 'nam CA' cannot be used as a selection"),
        ({"groups": ["lid=resid 1:3"], "reference": str(data.XTC)}, f"rmsd: reference '{data.XTC}'"),
    ],
    ("rmsf", ADK): [
        ({"selection": "name XX"}, "rmsf: parameter selection: 'name XX' selects none"),
        ({"fit": "name XX"}, "rmsf: parameter fit: 'name XX' selects none"),
        ({"reference": "average"}, "rmsf: reference 'average' is no file"),
        ({"reference": str(data.GRO), "selection": "protein"}, "has other atoms of selection"),
    ],
    ("sasa", VILLIN): [
        ({"selection": "resname XYZ"}, "parameter selection"),
        ({"part": "resname XYZ"}, "parameter part"),
        ({"selection": "name CA", "part": "name CA CB"}, "part 'name CA CB' has .* that are not in selection"),
        ({"probe": -1}, "probe must be 0 or more"),
        ({"points": 0}, "points must be greater than 0"),
        ({"radii": "nowhere"}, "radii must be bondi, protor or a file of radii, not 'nowhere'"),
        ({"radii": "protor", "part": "name H*"}, "no atom of part has a radius in 'protor'"),
    ],
    ("density", NANOPORE): [
        ({"bins": 0}, "density: bins must be greater than 0, not 0"),
        ({"grid": -1.0}, "density: grid must be greater than 0, not -1"),
        ({"grid": 0.01}, "density: grid=0.01 makes .* voxels"),
        ({"selection": "name XYZ"}, "parameter selection: 'name XYZ' selects none"),
        ({"center": "name XYZ"}, "parameter center: 'name XYZ' selects none"),
        ({"weights": "charge"}, "density: the topology has no charges"),
        ({"weights": "charge", "charges": ["name O"]}, "charges: 'name O' is not a selection and its charge"),
        (
            {"weights": "charge", "charges": ["name K = 1"]},
            "charges say nothing of 966 selected atoms, such as O of HOH",
        ),
        ({"weights": "charge", "charges": ["name QQ = 1"]}, "parameter charges: 'name QQ' selects none"),
        ({"center": "name O", "axis": "x"}, "'name O', are all around the box: they have no centre"),
    ],
    ("density", ADK): [({"selection": "name CA"}, "the trajectory has no box")],
    ("contacts", VILLIN): [
        ({"cutoff": 0}, "contacts: cutoff must be greater than 0, not 0"),
        ({"exclude": -1}, "contacts: exclude must be 0 or more, not -1"),
        ({"intermittency": -1}, "contacts: intermittency must be 0 or more"),
        ({"b": "resname XYZ"}, "contacts: parameter b"),
        ({"a": "name H*"}, "contacts: parameter a: 'name H.' selects no atom but hydrogens; choose other atoms"),
        ({"b": "name N", "scheme": "ca"}, "contacts: parameter b: 'name N' selects no alpha carbon"),
    ],
    ("native-contacts", ADK): [
        ({"a": "name H*"}, "parameter a selects hydrogens only"),
        ({"a": "resid 1:3"}, "no pair of atoms within 4.5 Å whose residues are 4 apart"),
        ({"beta": 0.0}, "beta must be greater than 0"),
    ],
    ("membrane", MEMBRANE): [
        ({"headgroups": "name XX"}, "headgroups"),
        ({"headgroups": "resid 1 and name P"}, "selects atoms of one residue"),
        ({"bins": 0}, "bins must be greater than 0"),
        ({"stay": 0}, "stay must be greater than 0"),
        ({"cutoff": -1.0}, "cutoff must be greater than 0"),
        ({"midplane": -1.0}, "midplane must be 0 or more"),
        ({"midplane": 40.0}, "the lower leaflet has no lipid"),
        ({"leaflets": "graph", "cutoff": 60.0}, "finds no two leaflets"),
    ],
    ("membrane", ADK): [({"headgroups": "name CA"}, "no box")],
    ("lipid-order", MEMBRANE): [
        ({"lipids": "resname POPC"}, "lipids"),
        ({"carbons": "name C99"}, "carbons"),
        ({"carbons": "name C21"}, "none of the 14 carbons of 'name C21'.*united-atom"),
        ({"leaflets": "z", "headgroups": "resname DLPE and name P"}, "no atom of residue DLPC"),
    ],
    ("lipid-order", (data.XTC_MEMPROT, data.GRO_MEMPROT)): [({}, "the topology has no bonds")],
    ("lipid-order", ADK): [({}, "lipids")],
    ("dielectric", SPCE_WATER): [
        ({"charges": SPCE, "temperature": 0.0}, "dielectric: temperature must be greater than 0"),
        ({}, "dielectric: the topology has no charges"),
    ],
    ("dielectric", ADK): [({}, "dielectric: the trajectory has no box")],
    ("dielectric", (data.XTC, data.TPR)): [
        ({"selection": "resname SOL NA+"}, r"the molecule of NA\+\d+ has a charge of 1 e"),
        ({"selection": "protein"}, "select whole neutral molecules"),
    ],
    ("dielectric", (data.DCD_TRICLINIC, data.PSF_TRICLINIC)): [
        ({"selection": "name OH2"}, "dielectric: what is selected of the molecule of")
    ],
    ("dielectric", WATER): [({"selection": "resname SOL", "charges": SPCE}, "charges say nothing of")],
    ("msd", NANOPORE): [
        ({"viscosity": 0.3}, "msd: viscosity and temperature go together"),
        ({"temperature": 300.0}, "msd: viscosity and temperature go together"),
        ({"viscosity": 0.0, "temperature": 300.0}, "msd: viscosity must be greater than 0, not 0"),
        ({"viscosity": 0.3, "temperature": -1.0}, "msd: temperature must be greater than 0, not -1"),
        ({"selection": "name K", "tau_max": 10, "fit": "10"}, "fit '10'.*give two lags"),
        ({"selection": "name K", "tau_max": 10, "fit": "a-b"}, "fit 'a-b'.*give two lags"),
        ({"selection": "name K", "tau_max": 10, "fit": "90-95"}, "fit '90-95'.*reach from 0 to"),
    ],
    ("msd", ADK): [
        ({"selection": "name CA"}, "unwrap=False"),
        (
            {"selection": "name CA", "unwrap": False, "viscosity": 1, "temperature": 300},
            "msd: the trajectory has no box that viscosity is for; leave viscosity",
        ),
    ],
    ("hydrogen-bonds", WATER): [
        ({**BRIDGES, "bridges": 2}, "bridges"),
        ({**BRIDGES, "by": "chain"}, "by"),
        ({**BRIDGES, "water": "resname XYZ"}, "parameter water"),
        ({**BRIDGES, "water": "resname NA+"}, r"no hydrogen is within 1.2 Å of water 'resname NA\+'"),
        ({"donors": None}, "donors"),
    ],
    ("hydrogen-bonds", NANOPORE): [
        ({**BRIDGES, **DONORS, "acceptors": "name O"}, "all donors and acceptors are water"),
        ({**DONORS, "donors": "name K"}, "no hydrogen of 'name H1 H2' is within"),
    ],
    ("hydrogen-bonds", VILLIN): [({"intermittency": -1}, "intermittency must be 0 or more, not -1")],
    ("water-residence", NANOPORE): [
        ({"intermittency": -1, "solute": "name K"}, "intermittency must be 0 or more, not -1"),
        ({"cutoff": -1}, "cutoff must be greater than 0"),
    ],
    ("rdf", ADK): [({"a": "name CA", "b": "name CA"}, "no box")],
    ("rdf", NANOPORE): [
        ({"a": "index 0", "b": "index 0"}, "a and b are one atom, the same .'index 0', 'index 0'."),
        ({**SAME_WATER, "by": "residue"}, "a and b are one residue, the same"),
        ({**SAME_WATER, "exclude": "same-residue"}, "a and b are one residue, the same"),
        ({**SAME_WATER, "by": "molecule"}, "a and b are one molecule, the same"),
        ({**SAME_WATER, "exclude": "same-molecule"}, "a and b are one molecule, the same"),
    ],
    ("velocity-autocorrelation", ARGON): [
        ({"selection": "all", "tau_max": -1}, "tau_max must be 0 or more, not -1"),
        ({"selection": "name XYZ"}, "parameter selection: 'name XYZ' selects none"),
    ],
    ("velocity-autocorrelation", WATER): [
        ({"selection": "protein", "tau_max": 1}, "velocity-autocorrelation: the trajectory has no velocities; give one")
    ],
    ("radius-of-gyration", VILLIN): [
        ({"selection": "name XX"}, "radius-of-gyration: parameter selection: 'name XX' selects none")
    ],
    ("ion-permeation", KCSA): [
        (
            {"top": "index 59 195 331 467", "bottom": "index 110 246 382 518", "radius": 2.5},
            r"top is not above bottom, .* z = \d+.*swap the two",
        )
    ],
}
CASES = [(*place, *case) for place, cases in REFUSED.items() for case in cases]


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
@pytest.mark.parametrize(("name", "files", "parameters", "message"), CASES)
def test_a_mistake_is_named(name, files, parameters, message):
    with pytest.raises(himach.UsageError, match=message):
        plain.run(load(name)(**parameters), *files, stop=2)


#: What axes without a unit are called.
AXES = {"residue", "index of atom", "number of the carbon in its chain"}


@pytest.mark.parametrize("name", BUILTINS)
def test_tables_and_plot(name):
    which, parameters = BUILTIN_RUNS[name]
    analysis = load(name)(**parameters)
    outcome = plain.run(analysis, *sample(which), stop=120)
    for table, (columns, _) in builtin_tables(name).items():
        assert list(outcome[table]) == columns
    result = [part for part in outcome.values() if isinstance(part, dict)]  # beside texts and arrays
    for table in result:
        assert len({len(column) for column in table.values()}) == 1
    for of_table in result:  # as of a trajectory that is thousands of times as long
        for column in {"time_ps", "tau_ps", "entered_ps", "left_ps", "from_ps", "to_ps"} & of_table.keys():
            of_table[column] = 10_000 * of_table[column]
    figure, axes = plt.subplots()
    while (following := analysis.next_stage()) is not None:
        analysis = following
    analysis.plot(outcome, axes)
    placed = [item for item in figure.axes if item.get_visible() and item.get_label() != "<colorbar>"]
    for panel in [item for item in placed if item.xaxis.get_visible()]:  # of two that share it, the first
        label = panel.get_xlabel()
        assert label in AXES or label.endswith((" / Å", " / ns", " / cm⁻¹"))
        assert panel.get_ylabel()
    figure.canvas.draw()
    plt.close(figure)


def test_samples_are_small():
    assert sum(path.stat().st_size for name in SAMPLES for path in sample(name)) < 5e6


def test_an_unknown_sample():
    with pytest.raises(himach.UsageError, match="there is no sample 'villain'; did you mean 'villin'"):
        sample("villain")
