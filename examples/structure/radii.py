"""Radii of atoms for surfaces: `get_radii`, by the sets of Bondi and ProtOr or by a file."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from MDAnalysis.guesser.default_guesser import DefaultGuesser

import himach

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup

__all__ = ["BONDI", "PROTOR", "get_elements", "get_radii"]

#: Match of an atom by its element, residue and name: what it was identified by, and its radius in Å.
Match = tuple[str, float | None]

#: Van der Waals radii in Å by element: Bondi, J. Phys. Chem. 68, 441 (1964); the second part, of elements that he does
#: not have, Mantina et al., J. Phys. Chem. A 113, 5806 (2009).
BONDI: dict[str, float] = {
    **{"H": 1.20, "He": 1.40, "Li": 1.82, "C": 1.70, "N": 1.55, "O": 1.52, "F": 1.47, "Ne": 1.54, "Na": 2.27},
    **{"Mg": 1.73, "Si": 2.10, "P": 1.80, "S": 1.80, "Cl": 1.75, "Ar": 1.88, "K": 2.75, "Ni": 1.63, "Cu": 1.40},
    **{"Zn": 1.39, "Ga": 1.87, "As": 1.85, "Se": 1.90, "Br": 1.85, "Kr": 2.02, "Pd": 1.63, "Ag": 1.72, "Cd": 1.58},
    **{"In": 1.93, "Sn": 2.17, "Te": 2.06, "I": 1.98, "Xe": 2.16, "Pt": 1.72, "Au": 1.66, "Hg": 1.55, "Tl": 1.96},
    **{"Pb": 2.02, "U": 1.86},
    **{"Be": 1.53, "B": 1.92, "Al": 1.84, "Ca": 2.31, "Ge": 2.11, "Rb": 3.03, "Sr": 2.49, "Sb": 2.06, "Cs": 3.43},
    **{"Ba": 2.68, "Bi": 2.07},
}

#: Radii in Å of proteins' atoms, their hydrogens included, by element, number of bonds and of hydrogens: Tsai et al.,
#: J. Mol. Biol. 290, 253 (1999). There all C4, all N and all S are alike.
PROTOR: dict[str, float] = {
    **{"C3H0": 1.61, "C3H1": 1.76, "C4": 1.88, "N": 1.64, "O1H0": 1.42, "O2H1": 1.46, "S": 1.77}
}
#: Residues that ProtOr knows, with their names in other topologies.
RESIDUES = """
ALA / ARG ARGN / ASN / ASP ASPH ASH ASPP / CYS CYX CYM CYSH CYS1 CYS2 CYH / GLN / GLU GLUH GLH GLUP / GLY
HIS HSD HSE HSP HID HIE HIP HISA HISB HISD HISE HISH HIS1 HIS2 / ILE / LEU / LYS LYN LSN LYSH / MET / PHE / PRO / SER
THR / TRP / TYR / VAL / ACE / NME NMA / NH2 NHE
"""
NAMES = {name: line.split()[0] for line in RESIDUES.replace("\n", " / ").split("/") for name in line.split()}
#: Atoms of side chains. C is C3H0 and O is O1H0 anyway, further carbons are C4, further oxygens O2H1.
SIDE_CHAINS: dict[str, dict[str, str]] = {
    "C3H0": {"ARG": "CZ", "ASN": "CG", "ASP": "CG", "GLN": "CD", "GLU": "CD", "HIS": "CG", "PHE": "CG"}
    | {"TRP": "CG CD2 CE2", "TYR": "CG CZ"},
    "C3H1": {"HIS": "CD2 CE1", "PHE": "CD1 CD2 CE1 CE2 CZ", "TYR": "CD1 CD2 CE1 CE2"} | {"TRP": "CD1 CE3 CZ2 CZ3 CH2"},
    "O1H0": {"ASN": "OD1", "ASP": "OD1", "GLN": "OE1", "GLU": "OE1"},
}
#: The first oxygen at the end of a chain, which is O elsewhere.
LIKE_O = ("O", "O1", "OT1", "OC1")


def get_radii(atoms: "AtomGroup", analysis: Any) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Return the van der Waals radii of atoms in Å, float64 (n,), and what identifies each; radius 0 is no sphere.

    Parameters
    ----------
    atoms
        The atoms.
    analysis
        Its attribute `radii` is ``bondi``, ``protor``, or a file of radii.

    Raises
    ------
    himach.UsageError
        If an atom has no radius, or the file cannot be read.
    """
    if analysis.radii == "bondi":
        find = _bondi
    elif analysis.radii == "protor":
        find = _protor
    else:
        find = _file_finder(analysis)
    keys = list(zip(get_elements(atoms), _texts(atoms, "resnames"), _texts(atoms, "names"), strict=True))
    matches = {atom: find(*atom) for atom in dict.fromkeys(keys)}
    for (element, residue, name), (_, radius) in matches.items():
        if radius is None:
            raise himach.UsageError(
                f"{analysis.label()}: radii {analysis.radii!r} have none for the atom {name or '?'} of residue "
                f"{residue or '?'}, element {element or '?'}; give a file of radii, -p radii=FILE, with lines such as "
                "'Zn 1.39' or 'HEM FE 1.5', or select other atoms"
            )
    return np.array([matches[atom][1] for atom in keys], np.float64), [matches[atom][0] for atom in keys]


def get_elements(atoms: "AtomGroup") -> list[str]:
    """Return the elements of atoms, such as ``Cl``, from the topology, else guessed by MDAnalysis from names."""
    guesser = DefaultGuesser(None)
    elements, names = _texts(atoms, "elements"), _texts(atoms, "names")
    guessed = {name: str(guesser.guess_atom_element(name)) for name in set(names)}
    return [(element or guessed[name]).capitalize() for element, name in zip(elements, names, strict=True)]


def _texts(atoms: "AtomGroup", attribute: str) -> list[str]:
    """Return an attribute of each atom as text, empty if the topology lacks it."""
    return [str(text).strip() for text in getattr(atoms, attribute, [""] * len(atoms))]


def _bondi(element: str, _residue: str, _name: str) -> Match:
    return element, BONDI.get(element)


def _protor(element: str, residue: str, name: str) -> Match:
    """Match an atom of a protein; radii include bound hydrogens."""
    if element == "H":
        return "H", 0.0
    # AMBER puts a letter before names at the ends of chains, as in NALA.
    standard = NAMES.get(residue) or NAMES.get(residue[1:] if residue[:1] in ("N", "C") and len(residue) == 4 else "")
    if standard is None:
        return element, None
    kind = {"C": "C4", "O": "O2H1"}.get(element, element)
    if (element == "C" and name == "C" and standard != "NME") or (element == "O" and name in LIKE_O):
        kind = "C3H0" if element == "C" else "O1H0"
    for side_kind, atoms in SIDE_CHAINS.items():
        if name in atoms.get(standard, "").split():
            kind = side_kind
    return kind, PROTOR.get(kind)


def _file_finder(analysis: Any) -> Callable[[str, str, str], Match]:
    """Return a function that matches an atom by the last fitting line of a file of radii."""
    rules: list[tuple[list[str], float]] = []
    try:
        lines = Path(analysis.radii).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise himach.UsageError(
            f"{analysis.label()}: radii must be bondi, protor or a file of radii, not {analysis.radii!r}: {error}"
        ) from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            radius = float(words[-1])
            if len(words) not in (2, 3) or not 0 <= radius < np.inf:
                raise ValueError
        except ValueError:
            raise himach.UsageError(
                f"{analysis.label()}: radii {analysis.radii!r}, line {number}: {line.strip()!r} is neither an element "
                "and its radius nor a residue, an atom and its radius"
            ) from None
        rules.append((words[:-1], radius))

    def find(element: str, residue: str, name: str) -> Match:
        for words, radius in reversed(rules):
            atom = (residue, name) if len(words) == 2 else (element.upper(),)
            pattern = words if len(words) == 2 else [words[0].upper()]
            if all(map(fnmatchcase, atom, pattern)):
                return " ".join(words), radius
        return "", None

    return find
