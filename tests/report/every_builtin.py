"""Runs of every built-in analysis over the samples, a folder for each sample: what a report is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import himach
from himach.examples import load, sample

#: By sample, built-ins and parameters: each built-in at least once.
RUNS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "villin": [
        ("rmsd", {}),
        ("rmsf", {"by": "residue"}),
        ("radius-of-gyration", {}),
        ("pca", {"components": 4, "bins": 12}),
        ("clusters", {"cutoff": 0.9}),
        ("geometry", {"distances": ["ends=name CA and resid 1 35"], "dihedrals": ["phi:resid 2:34", "psi:resid 2:34"]}),
        ("sasa", {"by": "residue"}),
        ("contacts", {}),
        ("hydrogen-bonds", {}),
        ("secondary-structure", {}),
    ],
    "nanopore": [
        ("rdf", {"a": "name K", "b": "name O", "r_max": 8.0}),
        ("water-residence", {"solute": "name K"}),
        ("density", {"selection": "resname HOH", "weights": "mass", "center": "resname GRA"}),
    ],
    "kcsa": [("ion-permeation", {"top": "resid 66 and name O", "bottom": "resid 63 and name OG1", "radius": 2.5})],
    "water": [
        ("msd", {"selection": "all", "molecules": True, "tau_max": 11, "viscosity": 0.73, "temperature": 300}),
        ("dielectric", {"charges": ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]}),
    ],
    "argon": [("velocity-autocorrelation", {"selection": "all", "tau_max": 55})],
    "membrane": [("lipid-order", {}), ("membrane", {})],
}


def run_every_builtin(place: Path, **options: Any) -> list[Path]:
    """Run them; return the folders."""
    folders = []
    for name, builtins in RUNS.items():
        analyses = [load(builtin)(**parameters) for builtin, parameters in builtins]
        himach.run(analyses, *sample(name), out=place / name, progress=False, **options)
        folders.append(place / name)
    return folders
