"""The built-in analyses, to run by name, to read and to copy.

Each is one file, written as a user would write it. `BUILTINS` names them, `load` imports one, `sample` gives the paths
of the small trajectories that come with himach (``data/README.md`` says what they are).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from himach.errors import UsageError, nearest

if TYPE_CHECKING:
    from himach.analysis import Analysis

__all__ = ["BUILTINS", "SAMPLES", "Sample", "load", "sample"]

#: Name of each built-in, and the module and class that it stands for.
BUILTINS: dict[str, str] = {
    "water-residence": "himach.examples.water_residence:WaterResidence",
    "ion-permeation": "himach.examples.ion_permeation:IonPermeation",
    "rmsd": "himach.examples.rmsd:Rmsd",
    "rdf": "himach.examples.rdf:Rdf",
    "msd": "himach.examples.msd:Msd",
    "hydrogen-bonds": "himach.examples.hydrogen_bonds:HydrogenBonds",
}

#: Name of each sample, and the names of its trajectory and topology in ``data/``.
SAMPLES: dict[str, tuple[str, str]] = {
    "nanopore": ("nanopore.xtc", "nanopore.pdb"),
    "kcsa": ("kcsa.xtc", "kcsa.pdb"),
    "villin": ("villin.xtc", "villin.pdb"),
}


class Sample(NamedTuple):
    """The paths of one sample: `trajectory` and `topology`."""

    trajectory: Path
    topology: Path


def load(name: str) -> type[Analysis]:
    """Import the built-in analysis of this name.

    Raises
    ------
    UsageError
        If there is none of this name.
    """
    if name not in BUILTINS:
        raise UsageError(f"there is no built-in analysis {name!r}{nearest(name, BUILTINS)}")
    module, _, attribute = BUILTINS[name].partition(":")
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
