"""Tails of lipids: which carbons have which hydrogens, by the bonds of the topology, and how carbons make chains."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import himach
from himach.examples.common import select

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe

__all__ = ["carbons_and_hydrogens", "letters", "number_carbons"]

Ints = npt.NDArray[np.int64]


def letters(atoms: "AtomGroup") -> npt.NDArray[np.str_]:
    """Return the element of each atom as far as lipids need it, such as ``C``: by name if none is given."""
    elements = atoms.elements if hasattr(atoms, "elements") else np.full(len(atoms), "")
    symbols = [
        element.upper() or name.lstrip("0123456789'\"*")[:1].upper()
        for element, name in zip(elements.tolist(), atoms.names.tolist(), strict=True)
    ]
    return np.array(symbols, dtype=np.str_)


def carbons_and_hydrogens(universe: "Universe", analysis: Any) -> Ints:
    """Return the indices of bonded carbons and hydrogens, (n, 2), ascending.

    The parameters `lipids` and `carbons` of the analysis select the carbons; if `carbons` is None, they are those
    bonded to carbons and hydrogens only, as in tails.

    Raises
    ------
    himach.UsageError
        If the topology has no bonds, a selection has no atom, or none of the carbons has a hydrogen.
    """
    lipids = select(universe, analysis, "lipids")
    is_lipid = np.zeros(len(universe.atoms), dtype=bool)
    is_lipid[lipids.indices] = True
    bonds = universe.bonds.indices if hasattr(universe, "bonds") else np.empty((0, 2), np.int64)
    bonds = np.concatenate([bonds, bonds[:, ::-1]])
    bonds = bonds[is_lipid[bonds[:, 0]]]
    if not len(bonds):
        raise himach.UsageError(
            f"{analysis.label()}: the topology has no bonds of {analysis.lipids!r}, and they tell which hydrogens "
            "belong to which carbon; give a topology that has bonds (PSF, TPR, PRMTOP, PDB with CONECT)"
        )
    kind = np.full(len(is_lipid), "", dtype="<U2")
    bonded = np.unique(bonds)
    kind[bonded] = letters(universe.atoms[bonded])
    carbon = is_lipid & (kind == "C")
    if analysis.carbons is None:
        to_others = ~np.isin(kind[bonds[:, 1]], ["C", "H"])
        carbon[bonds[to_others, 0]] = False
    else:
        selected = np.zeros(len(kind), dtype=bool)
        selected[select(universe, analysis, "carbons").indices] = True
        carbon &= selected
    pairs = bonds[carbon[bonds[:, 0]] & (kind[bonds[:, 1]] == "H")]
    if not len(pairs):
        description = "carbons of tails" if analysis.carbons is None else f"carbons of {analysis.carbons!r}"
        raise himach.UsageError(
            f"{analysis.label()}: none of the {int(carbon.sum())} {description} in {analysis.lipids!r} is bonded to a "
            "hydrogen; united-atom and coarse-grained lipids have no bonds between carbon and hydrogen"
        )
    return np.unique(pairs.astype(np.int64), axis=0)


def number_carbons(universe: "Universe", carbons: Ints) -> tuple[Ints, Ints]:
    """Return the chain of each carbon, from 1, and its place in it, as int64 (n,) each.

    Places are counted along bonds from the attachment of the chain to the lipid, or from its first carbon in the
    topology. That carbon is 2: number 1 of a fatty acid has no hydrogens.

    Parameters
    ----------
    carbons
        Indices of the carbons of one lipid, ascending.
    """
    bonds = universe.atoms[carbons].bonds.indices
    neighbours: dict[int, list[int]] = {carbon: [] for carbon in carbons.tolist()}
    anchors = set()
    for (a, b), elements in zip(bonds.tolist(), letters(universe.atoms[bonds.ravel()]).reshape(-1, 2), strict=True):
        if a in neighbours and b in neighbours:
            neighbours[a].append(b)
            neighbours[b].append(a)
        elif "H" not in elements:
            anchors.add(a if a in neighbours else b)
    numbering: dict[int, tuple[int, int]] = {}
    chain = 0
    for first in [*sorted(anchors), *neighbours]:
        if first in numbering:
            continue
        chain += 1
        numbering[first] = chain, 2
        queue = [first]
        for carbon in queue:
            for neighbour in neighbours[carbon]:
                if neighbour not in numbering:
                    numbering[neighbour] = chain, numbering[carbon][1] + 1
                    queue.append(neighbour)
    chains, places = np.array([numbering[carbon] for carbon in neighbours], dtype=np.int64).T
    return chains, places
