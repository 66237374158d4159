"""Passes over small trajectories in which every built-in analysis takes part, as words of ``himach run``."""

from __future__ import annotations

from MDAnalysisTests.datafiles import DCD, PSF

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
    "channel": ["ion-permeation", *FILTER, *KCSA],
    "channel, bulk to bulk": ["ion-permeation", *FILTER, "-p", "rule=bulk-to-bulk", *KCSA],
    "protein": [
        *("rmsd", "hydrogen-bonds", "msd", "-p", "rmsd.selection=name CA", "-p", "msd.unwrap=false"),
        *("-p", "msd.selection=name CA", *VILLIN, "--stop", "-1", "--step", "3"),
    ],
    "shape of a protein": [
        *("radius-of-gyration", "rmsf", "sasa", "geometry", "contacts", "secondary-structure", "clusters", "pca"),
        *("-p", "sasa.points=100", "-p", "sasa.by=residue", "-p", "geometry.distances=ends=resid 1; resid 35"),
        *("-p", "geometry.dihedrals=phi:protein", "-p", "clusters.cutoff=0.9", "-p", "pca.components=3"),
        *(*VILLIN, "--step", "2"),
    ],
    "water": [
        *("dielectric", "density", "-p", "dielectric.charges=name OW = -0.8476, name HW1 HW2 = 0.4238"),
        *("-p", "density.weights=mass", *WATER),
    ],
    "argon": ["velocity-autocorrelation", "-p", "selection=all", "-p", "tau_max=60", *ARGON],
    "membrane": ["lipid-order", "membrane", *MEMBRANE, "--stop", "40"],
    "adk": ["rmsd", "-p", "selection=name CA", "--trajectory", str(DCD), "--topology", str(PSF)],
}
