"""Passes over small trajectories in which every built-in analysis takes part, as words of ``himach run``."""

from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC

from himach.examples import sample

NANOPORE, KCSA, VILLIN, WATER, ARGON, MEMBRANE = (
    ["--trajectory", str(trajectory), "--topology", str(topology)]
    for trajectory, topology in map(sample, ("nanopore", "kcsa", "villin", "water", "argon", "membrane"))
)
WATER_BY_ATOM = ["-p", "water-residence.solute=name K", "-p", "water-residence.tau_max=10"]
WATER_BY_RESIDUE = [
    *("-p", "water-residence.water=resname HOH", "-p", "water-residence.solute=name CL"),
    *("-p", "water-residence.by=residue", "-p", "water-residence.intermittency=2"),
]
WATER_BONDS = [
    *("-p", "hydrogen-bonds.donors=name O", "-p", "hydrogen-bonds.hydrogens=name H1 H2"),
    *("-p", "hydrogen-bonds.acceptors=name O CL", "-p", "hydrogen-bonds.intermittency=1"),
    *("-p", "hydrogen-bonds.tau_max=4"),
]
FILTER = ["-p", "top=index 110 246 382 518", "-p", "bottom=index 59 195 331 467", "-p", "radius=2.5"]

#: name -> analyses, their parameters, the trajectory and the choice of frames
PASSES = {
    "nanopore": [
        *("water-residence", "rdf", "msd", *WATER_BY_ATOM, "-p", "rdf.a=name K", "-p", "msd.selection=name K CL"),
        *("-p", "msd.tau_max=20", *NANOPORE, "--stop", "40"),
    ],
    "nanopore, molecules": [
        *("water-residence", "hydrogen-bonds", *WATER_BY_RESIDUE, *WATER_BONDS),
        *(*NANOPORE, "--start", "10", "--step", "9"),
    ],
    "nanopore, residues": [
        *("rdf", "msd", "density", "-p", "rdf.a=resname HOH", "-p", "rdf.b=name K CL or resname HOH"),
        *("-p", "rdf.by=residue", "-p", "rdf.r_max=8", "-p", "msd.selection=resname HOH", "-p", "msd.molecules=true"),
        *("-p", "msd.tau_max=17", "-p", "msd.viscosity=0.3", "-p", "msd.temperature=300", "-p", "msd.directions=xy"),
        *("-p", "density.grid=1.5", *NANOPORE, "--stop", "40"),
    ],
    "channel": ["ion-permeation", *FILTER, *KCSA],
    "channel, bulk to bulk": ["ion-permeation", *FILTER, "-p", "rule=bulk-to-bulk", *KCSA],
    "shape of a protein": [
        *("radius-of-gyration", "rmsf", "sasa", "geometry", "contacts", "secondary-structure", "clusters", "pca"),
        *("pairwise-rmsd", "native-contacts", "persistence-length"),
        *("-p", "sasa.points=100", "-p", "sasa.by=residue", "-p", "geometry.distances=ends=resid 1; resid 35"),
        *("-p", "geometry.dihedrals=phi:protein", "-p", "clusters.cutoff=0.9", "-p", "pca.components=3"),
        *(*VILLIN, "--step", "2"),
    ],
    "protein, other ways": [
        *("rmsd", "rmsf", "contacts", "secondary-structure", "geometry", "-p", "rmsd.groups=nmp=resid 30:59"),
        *("-p", "rmsd.weights=mass", "-p", "rmsd.reference=3", "-p", "rmsf.selection=resid 1:40"),
        *("-p", "rmsf.fit=name CA", "-p", "rmsf.by=residue", "-p", "rmsf.weights=mass", "-p", "contacts.cutoff=6"),
        *("-p", "contacts.intermittency=1", "-p", "geometry.angles=index 1 2 3"),
        *("-p", "geometry.minimum=resid 1:3; resid 30:35", "--trajectory", str(DCD), "--topology", str(PSF)),
        *("--start", "90", "--stop", "10", "--step", "-3"),
    ],
    "bridges of water": [
        *("hydrogen-bonds", "-p", "bridges=1", "-p", "by=residue", "-p", "tau_max=2"),
        *("--trajectory", str(XTC), "--topology", str(GRO), "--stop", "4"),
    ],
    "water": [
        *("dielectric", "dipole-orientation", "density", "-p", "density.weights=mass", *WATER),
        *("-p", "dielectric.charges=name OW = -0.8476, name HW1 HW2 = 0.4238", "-p", "dipole-orientation.bins=10"),
        *("-p", "dipole-orientation.charges=name OW = -0.8476, name HW1 HW2 = 0.4238"),
    ],
    "argon": ["velocity-autocorrelation", "-p", "selection=all", "-p", "weights=mass", "-p", "tau_max=60", *ARGON],
    "membrane": ["lipid-order", "membrane", "-p", "lipid-order.leaflets=z", *MEMBRANE, "--stop", "40"],
    "adk": ["rmsd", "-p", "selection=name CA", "--trajectory", str(DCD), "--topology", str(PSF)],
}
#: Each built-in takes part in one of these.
EACH_TIME = ["nanopore", "channel, bulk to bulk", "shape of a protein", "bridges of water"]
EACH_TIME += ["water", "argon", "membrane", "adk"]
