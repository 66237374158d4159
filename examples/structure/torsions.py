"""Torsions of proteins by their names: the four atoms of phi, psi, omega and chi1 to chi5 of residues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from MDAnalysis.core.groups import Residue, ResidueGroup

__all__ = ["TORSIONS", "torsion_atoms"]

#: Four atoms of each torsion: their residue (0: itself, 1: the next), and their possible names there.
TORSIONS: dict[str, tuple[tuple[int, str], ...]] = {
    "phi": ((-1, "C"), (0, "N"), (0, "CA"), (0, "C")),
    "psi": ((0, "N"), (0, "CA"), (0, "C"), (1, "N")),
    "omega": ((0, "CA"), (0, "C"), (1, "N"), (1, "CA")),
    "chi1": ((0, "N"), (0, "CA"), (0, "CB"), (0, "CG CG1 OG OG1 SG")),
    "chi2": ((0, "CA"), (0, "CB"), (0, "CG CG1"), (0, "CD CD1 OD1 ND1 SD")),
    "chi3": ((0, "CB"), (0, "CG"), (0, "CD SD"), (0, "NE OE1 CE")),
    "chi4": ((0, "CG"), (0, "CD"), (0, "NE CE"), (0, "CZ NZ")),
    "chi5": ((0, "CD"), (0, "NE"), (0, "CZ"), (0, "NH1")),
}


def torsion_atoms(residues: ResidueGroup, torsion: str) -> tuple[npt.NDArray[np.int64], ResidueGroup]:
    """Return the atoms of a torsion, int64 (n, 4), and the residues that have it.

    Successive residues are neighbours in the topology, of one segment, with successive numbers.

    Parameters
    ----------
    residues
        Any; those that lack an atom, or have two of a name, are left out.
    torsion
        One of `TORSIONS`.
    """
    rows, indices = [], []
    for i, residue in enumerate(residues):
        atoms = [_atom(_neighbour(residue, shift), names.split()) for shift, names in TORSIONS[torsion]]
        if None not in atoms:
            rows.append(atoms)
            indices.append(i)
    return np.array(rows, dtype=np.int64).reshape(-1, 4), residues[indices]


def _neighbour(residue: Residue, shift: int) -> Residue | None:
    residues = residue.universe.residues
    if not 0 <= residue.ix + shift < len(residues):
        return None
    neighbour = residues[residue.ix + shift]
    is_next = neighbour.segment.ix == residue.segment.ix and neighbour.resid == residue.resid + shift
    return neighbour if is_next else None


def _atom(residue: Residue | None, names: list[str]) -> int | None:
    """Return the index of the only atom of a residue with one of these names; None if there is not exactly one."""
    indices = () if residue is None else residue.atoms.indices[np.isin(residue.atoms.names.astype(str), names)]
    return int(indices[0]) if len(indices) == 1 else None
