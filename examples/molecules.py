"""Molecules and residues as wholes: which atoms they have, and where their centres of mass are in a frame."""

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from MDAnalysis.lib.mdamath import triclinic_vectors

import himach
from himach import kernels
from himach.examples.groups import residue_labels
from himach.examples.superposition import get_masses
from himach.transformations import bonds_outwards, molecules, topology_bonds

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe

    from himach.frame import Frame

__all__ = ["Centers", "Singles", "make_points", "numbers_by", "warn_of_cut_molecules"]

Ints = npt.NDArray[np.int64]


class Singles:
    """Atoms, each by itself, with what `Centers` have."""

    def __init__(self, atoms: "AtomGroup") -> None:
        self.indices = self.numbers = np.asarray(atoms.indices, np.int64)

    def locate(self, frame: "Frame") -> npt.NDArray[np.float32]:
        """Return their positions in a frame, float32 (n, 3), Å."""
        return frame.positions[self.indices]


class Centers:
    """Centres of mass of the residues or molecules that atoms belong to, in frames where the boundary may cut them.

    Parameters
    ----------
    atoms
        The atoms of which the centres are. Others of their residues or molecules do not count.
    analysis
        That which is named in errors.
    by
        Whether to make one centre a residue or a molecule, as `numbers_by` has them.
    whole
        Whether the boundary may cut them; else atoms are taken where they are.

    Attributes
    ----------
    indices
        Indices of the atoms that are read, int64 (n,): those above, and where no bonds join these to one another, the
        rest of their residue or molecule.
    numbers
        Numbers of the residues or molecules, int64 (k,), ascending: the order of the centres.

    Raises
    ------
    himach.UsageError
        If the topology has no masses, or none of a residue or molecule.

    Notes
    -----
    An atom is put next to the one that it is bonded to, and parts that no bonds join, such as all atoms where the
    topology has none, as near as can be to the first atom. That needs bonds, or else residues, shorter than half the
    box. Without a box, atoms are taken where they are.
    """

    def __init__(
        self, atoms: "AtomGroup", analysis: Any, by: Literal["residue", "molecule"], whole: bool = True
    ) -> None:
        universe, selected = atoms.universe, np.unique(atoms.indices)
        bonds = get_bonds(universe)
        numbers = numbers_by(universe, analysis, by, bonds)
        bonds = bonds[numbers[bonds[:, 0]] == numbers[bonds[:, 1]]]
        self.indices = selected
        pieces = np.unique(molecules(index_bonds(bonds, selected), len(selected)), return_index=True)[1]
        broken = np.bincount(numbers[selected[pieces]], minlength=numbers.max() + 1) > 1
        if whole and len(bonds) and broken.any():
            self.indices = np.union1d(selected, np.flatnonzero(broken[numbers]))
        self.numbers, first, self.groups = np.unique(numbers[self.indices], return_index=True, return_inverse=True)
        self.tree = np.empty((0, 2), np.int64)
        if whole:  # the first atom holds parts that no bonds join
            bonds, n = index_bonds(bonds, self.indices), len(self.indices)
            pieces = np.unique(molecules(bonds, n), return_index=True)[1]
            joined = np.column_stack([first[self.groups[pieces]], pieces])
            self.tree = bonds_outwards(np.concatenate([bonds, joined[joined[:, 0] != joined[:, 1]]]), n)
        masses = np.zeros(len(universe.atoms))
        masses[selected] = get_masses(universe.atoms[selected], analysis)
        self.masses = masses[self.indices]
        massless = np.flatnonzero(np.bincount(self.groups, self.masses) == 0)
        if len(massless):
            residue = residue_labels(universe.atoms[self.indices[first[massless[:1]]]].residues)[0]
            raise himach.UsageError(f"{analysis.label()}: the selected atoms of the {by} of {residue} have no mass")

    def locate(self, frame: "Frame") -> npt.NDArray[np.float64]:
        """Return the centres in a frame, float64 (k, 3), Å; they may lie beyond the box."""
        positions = frame.positions[self.indices]
        if len(self.tree) and frame.box is not None:
            positions = kernels.unwrap(positions, self.tree, frame.box)
        return kernels.centers(positions, self.groups, self.masses)


def make_points(
    atoms: "AtomGroup", analysis: Any, by: Literal["atom", "residue", "molecule"], whole: bool = True
) -> Singles | Centers:
    """Return atoms as points: single ones, or the `Centers` of their residues or molecules."""
    return Singles(atoms) if by == "atom" else Centers(atoms, analysis, by, whole)


def numbers_by(
    universe: "Universe", analysis: Any, by: Literal["residue", "molecule"], bonds: Ints | None = None
) -> Ints:
    """Return the number of each atom's residue or molecule, int64 (n_atoms,) from 0.

    A molecule is what bonds join. Atoms without bonds, such as massless sites of water models, belong to the rest of
    their residue, unless that is several molecules. Without bonds, residues are molecules.

    Warns
    -----
    UserWarning
        If molecules are requested, and there are no bonds.
    """
    residues = universe.atoms.resindices.astype(np.int64)
    if by == "residue":
        return residues
    bonds = get_bonds(universe) if bonds is None else bonds
    if not len(bonds):
        warnings.warn(f"{analysis.label()}: the topology has no bonds, so each residue is a molecule", stacklevel=4)
    bonded = np.zeros(len(residues), bool)
    bonded[bonds] = True
    pairs = np.unique(np.stack([residues, molecules(bonds, len(residues))])[:, bonded], axis=1)
    several = np.bincount(pairs[0], minlength=residues.max() + 1) > 1
    residue_atoms = np.zeros(residues.max() + 1, np.int64)  # one of its bonded atoms, if there is any
    for mask in (~bonded, bonded):
        residue_atoms[residues[mask]] = np.flatnonzero(mask)
    loose = np.flatnonzero(~bonded & ~several[residues])
    return molecules(np.concatenate([bonds, np.column_stack([loose, residue_atoms[residues[loose]]])]), len(residues))


def warn_of_cut_molecules(analysis: himach.Analysis, atoms: "AtomGroup") -> None:
    """Warn if bonds of residues of these atoms are longer than half the box in the first frame."""
    universe = atoms.universe
    bonds = topology_bonds(universe)
    try:
        box = universe.dimensions if len(bonds) else None
    except himach.AnalysisError:  # the atoms were fitted
        return
    if box is None:
        return
    is_selected = np.zeros(len(universe.residues), bool)
    is_selected[atoms.resindices] = True
    bonds = bonds[is_selected[universe.atoms.resindices[bonds]].any(axis=1)]
    extents = np.abs(np.diff(universe.atoms.positions[bonds], axis=1)[:, 0])
    is_long = (extents > np.diagonal(triclinic_vectors(box)) / 2).any(axis=1)
    if is_long.any():
        warnings.warn(
            f"{analysis.label()}: the boundary of the box cuts molecules, {is_long.sum()} bonds of the first frame are "
            "longer than half the box; make molecules whole (--whole, transform=[himach.transformations.Whole()])",
            stacklevel=3,
        )


def get_bonds(universe: "Universe") -> Ints:
    """Return the bonds of the topology as pairs of indices, int64 (m, 2); none where it has none."""
    bonds = universe.bonds.indices if hasattr(universe, "bonds") else ()
    return np.asarray(bonds, np.int64).reshape(-1, 2)


def index_bonds(bonds: Ints, indices: Ints) -> Ints:
    """Return bonds between atoms of these indices as places among them, int64 (m, 2)."""
    index = np.full(max(bonds.max(initial=-1), indices.max(initial=-1)) + 1, -1)
    index[indices] = np.arange(len(indices))
    pairs = index[bonds]
    return pairs[(pairs >= 0).all(axis=1)]
