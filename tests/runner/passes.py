"""Passes over small trajectories in which every built-in analysis takes part, as words of ``himach run``."""

from __future__ import annotations

from MDAnalysisTests.datafiles import DCD, PSF

from himach.examples import sample

NANOPORE, KCSA, VILLIN = (
    ["--trajectory", str(trajectory), "--topology", str(topology)]
    for trajectory, topology in map(sample, ("nanopore", "kcsa", "villin"))
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
    "adk": ["rmsd", "-p", "selection=name CA", "--trajectory", str(DCD), "--topology", str(PSF)],
}
