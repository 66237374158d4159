"""The built-in analyses: their tables and plots; mistakes in parameters, and in files, are named at the first frame."""

import matplotlib.pyplot as plt
import pytest
from MDAnalysisTests import datafiles as data
from support import plain
from support.sample_runs import BUILTIN_RUNS, builtin_tables

import himach
from himach.examples import BUILTINS, load, sample

ADK, WATER = (data.DCD, data.PSF), (data.XTC, data.GRO)
KCSA, MEMBRANE, NANOPORE, SPCE_WATER, VILLIN = map(sample, ("kcsa", "membrane", "nanopore", "water", "villin"))
SPCE = ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]
BRIDGES = {"bridges": 1, "tau_max": 1}
DONORS = {"donors": "name O", "hydrogens": "name H1 H2", "acceptors": "name O CL"}
SAME_WATER = {"a": "resname HOH and resid 50", "b": "resname HOH and resid 50 and name O"}
#: Analysis and files -> parameters, and the message.
REFUSED = {
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
    ("rmsd", ADK): [
        ({"reference": "none.pdb"}, "rmsd: reference 'none.pdb' is no file, nor the number of a frame"),
        ({"reference": str(data.GRO), "selection": "protein"}, "has other atoms of selection: H1 of residue 1 where"),
        (
            {"reference": str(data.GRO), "selection": "name OW O*"},
            "atoms of selection 'name OW O[*]', the trajectory has 3",
        ),
        ({"reference": str(data.PSF)}, f"rmsd: reference '{data.PSF}'"),
        ({"groups": ["a=name CA", "a=name CB"]}, "rmsd: two groups are called 'a'"),
        ({"symmetric": True}, "rmsd: symmetric is for 100 atoms at most, and 855 are selected"),
        ({"symmetric": True, "groups": ["name CB"]}, "rmsd: symmetric and groups need a fit of other atoms"),
        ({"groups": ["rmsd=name CA"]}, "rmsd: a group cannot be called 'rmsd'"),
        ({"groups": ["core=nam CA"]}, "rmsd: parameter groups: 'nam CA' cannot be used as a selection"),
        ({"groups": ["lid=resid 1:3"], "reference": str(data.XTC)}, f"rmsd: reference '{data.XTC}'"),
    ],
    ("rmsf", ADK): [
        ({"reference": "average"}, "rmsf: reference 'average' is no file"),
        ({"reference": str(data.GRO), "selection": "protein"}, "has other atoms of selection"),
    ],
    ("sasa", VILLIN): [
        ({"selection": "name CA", "part": "name CA CB"}, "part 'name CA CB' has .* that are not in selection"),
        ({"radii": "nowhere"}, "radii must be bondi, protor or a file of radii, not 'nowhere'"),
        ({"radii": "protor", "part": "name H*"}, "no atom of part has a radius in 'protor'"),
    ],
    ("density", NANOPORE): [
        ({"grid": 0.01}, "density: grid=0.01 makes .* voxels"),
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
        ({"a": "name H*"}, "contacts: parameter a: 'name H.' selects no atom but hydrogens; choose other atoms"),
        ({"b": "name N", "scheme": "ca"}, "contacts: parameter b: 'name N' selects no alpha carbon"),
    ],
    ("native-contacts", ADK): [
        ({"a": "name H*"}, "parameter a selects hydrogens only"),
        ({"a": "resid 1:3"}, "no pair of atoms within 4.5 Å whose residues are 4 apart"),
    ],
    ("membrane", MEMBRANE): [
        ({"headgroups": "resid 1 and name P"}, "selects atoms of one residue"),
        ({"midplane": 40.0}, "the lower leaflet has no lipid"),
        ({"leaflets": "graph", "cutoff": 60.0}, "finds no two leaflets"),
    ],
    ("membrane", ADK): [({"headgroups": "name CA"}, "no box")],
    ("lipid-order", MEMBRANE): [
        ({"carbons": "name C21"}, "none of the 14 carbons of 'name C21'.*united-atom"),
        ({"leaflets": "z", "headgroups": "resname DLPE and name P"}, "no atom of residue DLPC"),
    ],
    ("lipid-order", (data.XTC_MEMPROT, data.GRO_MEMPROT)): [({}, "the topology has no bonds")],
    ("dielectric", SPCE_WATER): [
        ({}, "dielectric: the topology has no charges"),
    ],
    ("dipole-orientation", SPCE_WATER): [({}, "dipole-orientation: the topology has no charges")],
    ("dipole-orientation", ADK): [({"selection": "all"}, "dipole-orientation: the trajectory has no box")],
    ("persistence-length", ADK): [
        ({"selection": "name CA and resid 1 2"}, "selects 2 atoms of a chain, and 2 bonds need 3"),
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
    ("rdf", ADK): [({"a": "name CA", "b": "name CA"}, "no box")],
    ("rdf", NANOPORE): [
        ({"a": "index 0", "b": "index 0"}, "a and b are one atom, the same .'index 0', 'index 0'."),
        ({**SAME_WATER, "by": "residue"}, "a and b are one residue, the same"),
        ({**SAME_WATER, "exclude": "same-residue"}, "a and b are one residue, the same"),
        ({**SAME_WATER, "by": "molecule"}, "a and b are one molecule, the same"),
        ({**SAME_WATER, "exclude": "same-molecule"}, "a and b are one molecule, the same"),
    ],
    ("velocity-autocorrelation", WATER): [
        ({"selection": "protein", "tau_max": 1}, "velocity-autocorrelation: the trajectory has no velocities; give one")
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


#: Numbers that may be 0, and texts that select no atoms in these runs.
FROM_0 = {"tau_max", "intermittency", "centers", "exclude", "probe", "midplane"}
NO_SELECTIONS = {("sasa", "radii"), ("msd", "fit"), ("hydrogen-bonds", "water")}


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
@pytest.mark.parametrize("name", BUILTINS)
def test_selections_of_nothing_and_numbers_that_are_too_small_are_named(name):
    which, usual = BUILTIN_RUNS[name]
    for parameter, kind in load(name).parameters().items():
        if parameter in ("reference", "angle") or (name, parameter) in NO_SELECTIONS:
            continue
        if kind.type_name.startswith("str"):
            value, message = "name XYZ", f"parameter {parameter}: 'name XYZ' selects none"
        elif not kind.type_name.startswith(("int", "float")):
            continue
        elif parameter in FROM_0:
            value, message = -1, f"{parameter} must be 0 or more, not -1"
        else:
            value, message = 0, f"{parameter} must be greater than 0, not 0"
        with pytest.raises(himach.UsageError, match=f"{name}: {message}"):
            plain.run(load(name)(**{**usual, parameter: value}), *sample(which), stop=2)


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


def test_an_unknown_sample():
    with pytest.raises(himach.UsageError, match="there is no sample 'villain'; did you mean 'villin'"):
        sample("villain")
