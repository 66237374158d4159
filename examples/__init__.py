"""The built-in analyses, to run by name, to read and to copy.

Each is one file, written as a user would write it. `BUILTINS` names them, `load` imports one, `sample` gives the paths
of the small trajectories that come with himach (``data/README.md`` says what they are).
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from himach.errors import UsageError, nearest
from himach.ranks.launch.preload import interrupts_wait

if TYPE_CHECKING:
    from himach.analysis import Analysis

__all__ = ["BUILTINS", "SAMPLES", "Sample", "load", "sample"]

#: Module and class of each built-in, by name.
BUILTINS: dict[str, str] = {
    "water-residence": "himach.examples.interactions.water_residence:WaterResidence",
    "ion-permeation": "himach.examples.interactions.ion_permeation:IonPermeation",
    "rmsd": "himach.examples.structure.rmsd:Rmsd",
    "pairwise-rmsd": "himach.examples.structure.pairwise_rmsd:PairwiseRmsd",
    "clusters": "himach.examples.structure.clusters:Clusters",
    "rmsf": "himach.examples.structure.rmsf:Rmsf",
    "radius-of-gyration": "himach.examples.structure.radius_of_gyration:RadiusOfGyration",
    "persistence-length": "himach.examples.structure.persistence_length:PersistenceLength",
    "pca": "himach.examples.structure.pca:Pca",
    "geometry": "himach.examples.structure.geometry:Geometry",
    "sasa": "himach.examples.structure.sasa:Sasa",
    "rdf": "himach.examples.liquids.rdf:Rdf",
    "density": "himach.examples.liquids.density:Density",
    "msd": "himach.examples.liquids.msd:Msd",
    "contacts": "himach.examples.interactions.contacts:Contacts",
    "native-contacts": "himach.examples.interactions.native_contacts:NativeContacts",
    "dielectric": "himach.examples.liquids.dielectric:Dielectric",
    "dipole-orientation": "himach.examples.liquids.dipole_orientation:DipoleOrientation",
    "velocity-autocorrelation": "himach.examples.liquids.velocity_autocorrelation:VelocityAutocorrelation",
    "hydrogen-bonds": "himach.examples.interactions.hydrogen_bonds:HydrogenBonds",
    "secondary-structure": "himach.examples.structure.secondary_structure:SecondaryStructure",
    "lipid-order": "himach.examples.membranes.lipid_order:LipidOrder",
    "membrane": "himach.examples.membranes.membrane:Membrane",
}

#: What GROMACS, cpptraj and MDAnalysis call the built-in analyses.
ELSEWHERE = {
    "clusters": ("cluster", "clustering"),
    "contacts": ("contact-map", "salt-bridges", "saltbr"),
    "dielectric": ("dipoles",),
    "geometry": ("angle", "dihedral", "dihedrals", "distance", "distances", "mindist", "pairdist", "ramachandran"),
    "hydrogen-bonds": ("hbond", "hbonds"),
    "lipid-order": ("order",),
    "pca": ("anaeig", "covar"),
    "persistence-length": ("end-to-end", "polystat"),
    "radius-of-gyration": ("gyrate", "radgyr", "rg"),
    "rmsd": ("rms",),
    "secondary-structure": ("do_dssp", "dssp"),
    "velocity-autocorrelation": ("vacf", "velacc"),
    "water-residence": ("residence", "survival"),
}

#: Trajectory and topology of each sample in ``data/``, by name.
SAMPLES: dict[str, tuple[str, str]] = {
    "nanopore": ("nanopore.xtc", "nanopore.pdb"),
    "kcsa": ("kcsa.xtc", "kcsa.pdb"),
    "villin": ("villin.xtc", "villin.pdb"),
    "water": ("water.xtc", "water.pdb"),
    "argon": ("argon.trr", "argon.pdb"),
    "membrane": ("membrane.xtc", "membrane.pdb"),
}


class Sample(NamedTuple):
    """The paths of one sample: `trajectory` and `topology`."""

    trajectory: Path
    topology: Path


def built_in_hint(name: str) -> str:
    """Return a hint at the built-in analysis that somebody may mean."""
    here = next((here for here, names in ELSEWHERE.items() if name.lower() in names), None)
    return f"; did you mean {here!r}?" if here else nearest(name.lower(), BUILTINS)


def load(name: str) -> "type[Analysis]":
    """Import the built-in analysis of this name.

    Raises
    ------
    UsageError
        If there is none of this name.
    """
    if name not in BUILTINS:
        raise UsageError(f"there is no built-in analysis {name!r}{built_in_hint(name)}")
    module, _, attribute = BUILTINS[name].partition(":")
    with interrupts_wait():
        analysis: type[Analysis] = getattr(importlib.import_module(module), attribute)
    return analysis


def sample(name: str) -> Sample:
    """Return the paths of a sample trajectory that comes with himach.

    Raises
    ------
    UsageError
        If there is none of this name.

    Examples
    --------
    >>> trajectory, topology = sample("nanopore")
    >>> trajectory.name, topology.name
    ('nanopore.xtc', 'nanopore.pdb')
    """
    if name not in SAMPLES:
        raise UsageError(f"there is no sample {name!r}{nearest(name, SAMPLES)}")
    trajectory, topology = SAMPLES[name]
    folder = Path(__file__).parent / "data"
    return Sample(folder / trajectory, folder / topology)
