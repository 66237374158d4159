"""Groups of atoms and their names: several selections in one parameter, heavy atoms, labels of residues."""

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import himach
from himach.atoms import Atoms

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, ResidueGroup, Universe

__all__ = ["heavy_atoms", "name_columns", "named_selections", "residue_labels", "residue_numbers", "split_name"]

#: A name and what it stands for: ``core=resid 5:30``. ``prop z == 3`` has no name.
NAMED = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)\s*(.+)", re.DOTALL)


def split_name(text: str) -> tuple[str, str]:
    """Return the name and the rest of an entry such as ``core=resid 5:30``; one without a name is its own.

    Examples
    --------
    >>> split_name("core=resid 5:30"), split_name("name CA")
    (('core', 'resid 5:30'), ('name CA', 'name CA'))
    """
    match = NAMED.fullmatch(text)
    return (match[1], match[2].strip()) if match else (text.strip(), text.strip())


def named_selections(universe: "Universe", analysis: Any, parameter: str) -> "dict[str, AtomGroup]":
    """Return the groups of a parameter with a list of selections, by name, in the given order.

    Raises
    ------
    himach.UsageError
        If a selection cannot be read or selects no atom, or two have one name.
    """
    groups: dict[str, AtomGroup] = {}
    for entry in getattr(analysis, parameter):
        name, selection = split_name(entry)
        if name in groups:
            raise himach.UsageError(f"{analysis.label()}: two {parameter} are called {name!r}; name them, as in a=...")
        try:
            groups[name] = Atoms.from_value(selection).select_fixed(universe, parameter)
        except himach.UsageError as error:
            raise himach.UsageError(f"{analysis.label()}: {error}") from error
    return groups


def heavy_atoms(atoms: "AtomGroup") -> "AtomGroup":
    """Return the atoms that are no hydrogens: by elements, or by names if the topology has none.

    Names of hydrogens begin with H, or with digits and H. Masses do not tell: some simulations make hydrogens heavier.
    """
    elements = atoms.elements if hasattr(atoms, "elements") else [""] * len(atoms)
    kinds = [element or name.lstrip("0123456789")[:1] for element, name in zip(elements, atoms.names, strict=True)]
    return atoms[np.char.upper(np.array(kinds, dtype=str)) != "H"]


def residue_labels(residues: "ResidueGroup") -> list[str]:
    """Return labels of residues: ``ALA12``, or ``A:ALA12`` if there are several segments.

    Labels that several residues have include the index, ``ALA12 (resindex 11)``.
    """
    several = len(set(residues.segids)) > 1 if hasattr(residues, "segids") else False
    all_residues = residues.universe.residues
    counts = Counter(_labels(all_residues[np.isin(all_residues.resids, residues.resids)], several))
    return [
        label if counts[label] == 1 else f"{label} (resindex {index})"
        for label, index in zip(_labels(residues, several), residues.resindices, strict=True)
    ]


def _labels(residues: "ResidueGroup", by_segment: bool) -> list[str]:
    segments = residues.segids if by_segment else np.full(len(residues), "")
    names = residues.resnames if hasattr(residues, "resnames") else np.full(len(residues), "")
    icodes = residues.icodes if hasattr(residues, "icodes") else np.full(len(residues), "")
    return [
        f"{segment}:{name}{number}{icode}" if by_segment else f"{name}{number}{icode}"
        for segment, name, number, icode in zip(segments, names, residues.resids, icodes, strict=True)
    ]


def name_columns(group: "AtomGroup | ResidueGroup") -> dict[str, himach.Column]:
    """Return columns of what a topology calls residues or atoms: chain, resid and resname, of atoms also their name."""
    attributes = {"chain": "segids", "resid": "resids", "resname": "resnames", "name": "names"}
    names = {column: getattr(group, attribute, None) for column, attribute in attributes.items()}
    texts = {column: cells.tolist() for column, cells in names.items() if isinstance(cells, np.ndarray)}
    return {column: himach.Column(cells, role="label") for column, cells in texts.items()}


def residue_numbers(atoms: "AtomGroup") -> "tuple[npt.NDArray[np.int64], ResidueGroup]":
    """Return the residue number of each atom, int64 (n,) from 0, and these residues."""
    _, numbers = np.unique(atoms.resindices, return_inverse=True)
    return numbers.astype(np.int64), atoms.residues
