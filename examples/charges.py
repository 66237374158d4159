"""Charges and atomic numbers of atoms, and what these count for in sums that are exact."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from MDAnalysis.guesser.tables import SYMB2Z, masses

import himach
from himach.atoms import Atoms
from himach.examples.superposition import get_masses

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup

__all__ = ["get_atomic_numbers", "get_charges", "whole_weights"]

Floats = npt.NDArray[np.float64]
#: What masses are counted in, u; charges and electrons, e.
SMALL_MASS, SMALL_CHARGE = 1e-5, 1e-6
#: An atom is of an element if its mass differs by less than this, u.
SAME_MASS = 0.05


def get_charges(atoms: "AtomGroup", analysis: Any) -> Floats:
    """Return the charges of atoms in e, float64 (n,).

    Parameters
    ----------
    atoms
        The atoms.
    analysis
        Its parameter `charges` is a list of entries ``SELECTION = CHARGE``, of which later ones override earlier ones;
        without entries the topology's charges count.

    Raises
    ------
    himach.UsageError
        If the topology has no charges, an entry cannot be read or selects no atom, or an atom has no entry.
    """
    if not analysis.charges:
        if not hasattr(atoms, "charges"):
            raise himach.UsageError(
                f"{analysis.label()}: the topology has no charges; give one that has (TPR, PSF, PRMTOP, PQR), or say "
                'what they are, as in -p charges="name OW = -0.834, name HW1 HW2 = 0.417"'
            )
        return np.asarray(atoms.charges, np.float64)
    all_charges = np.full(len(atoms.universe.atoms), np.nan)
    for entry in analysis.charges:
        selection, _, value = entry.rpartition("=")
        try:
            charge = float(value)
            if not selection.strip() or not np.isfinite(charge):
                raise ValueError
        except ValueError:
            raise himach.UsageError(
                f"{analysis.label()}: charges: {entry!r} is not a selection and its charge, as in 'name OW = -0.834'"
            ) from None
        try:
            all_charges[Atoms.from_value(selection).select_fixed(atoms.universe, "charges").indices] = charge
        except himach.UsageError as error:
            raise himach.UsageError(f"{analysis.label()}: {error}") from error
    charges: Floats = all_charges[atoms.indices]
    if np.isnan(charges).any():
        first = atoms[int(np.argmax(np.isnan(charges)))]
        name, residue = getattr(first, "name", "an atom"), getattr(first, "resname", "residue")
        raise himach.UsageError(
            f"{analysis.label()}: charges say nothing of {int(np.isnan(charges).sum())} selected atoms, such as {name} "
            f"of {residue} {first.resid}"
        )
    return charges


def get_atomic_numbers(atoms: "AtomGroup", analysis: Any) -> npt.NDArray[np.int64]:
    """Return the atomic numbers of atoms, int64 (n,).

    They are those of elements, or of masses for atoms without an element; sites without mass, such as those of water
    models, have 0.

    Raises
    ------
    himach.UsageError
        If an atom has neither the name nor the mass of an element.
    """
    n = len(atoms)
    symbols = [str(item).strip().capitalize() for item in atoms.elements] if hasattr(atoms, "elements") else [""] * n
    weights = np.asarray(atoms.masses if hasattr(atoms, "masses") else np.full(n, np.nan), np.float64).tolist()
    numbers = {kind: _atomic_number(*kind) for kind in set(zip(symbols, weights, strict=True))}
    atomic_numbers = np.array([numbers[kind] for kind in zip(symbols, weights, strict=True)], np.int64)
    if (atomic_numbers < 0).any():
        first = int(np.argmax(atomic_numbers < 0))
        name, residue = getattr(atoms[first], "name", "an atom"), getattr(atoms[first], "resname", "residue")
        raise himach.UsageError(
            f"{analysis.label()}: {name} of {residue} {atoms[first].resid} has neither the name of an element "
            f"({symbols[first]!r}) nor the mass of one ({weights[first]:g} u), and electrons are counted by it; give a "
            "topology that has elements"
        )
    return atomic_numbers


def _atomic_number(symbol: str, mass: float) -> int:
    """Return the atomic number of a symbol, or without one of a mass in u; -1 if it is of no element."""
    if symbol:
        return int(SYMB2Z.get(symbol, -1))
    if mass == 0:
        return 0
    difference, nearest = min((abs(element_mass - mass), name) for name, element_mass in masses.items())
    return int(SYMB2Z.get(nearest.capitalize(), -1)) if difference < SAME_MASS else -1


def whole_weights(atoms: "AtomGroup", analysis: Any) -> tuple[float, Floats | None]:
    """Return a small unit, and the weight of each atom in it, integers as float64 (n,).

    Parameters
    ----------
    atoms
        The atoms.
    analysis
        Its parameter `weights` is ``number`` (None: each atom counts once), ``mass``, ``charge``, or ``electron``: the
        atomic number, less the charge if known. It has a parameter `charges`, too.

    Raises
    ------
    himach.UsageError
        If the topology lacks these data, or sums over all frames would not fit into 64 bits.
    """
    if analysis.weights == "number":
        return 1.0, None
    unit = SMALL_MASS if analysis.weights == "mass" else SMALL_CHARGE
    if analysis.weights == "mass":
        weights = get_masses(atoms, analysis)
    elif analysis.weights == "charge":
        weights = get_charges(atoms, analysis)
    else:
        weights = get_atomic_numbers(atoms, analysis).astype(np.float64)
        if analysis.charges or hasattr(atoms, "charges"):
            weights -= get_charges(atoms, analysis)
    integers: Floats = np.rint(weights / unit)
    if np.abs(integers).sum() * max(1, len(analysis.frames)) > 2**62:
        raise himach.UsageError(
            f"{analysis.label()}: so many frames of so many atoms cannot be added up exactly; select fewer by step"
        )
    return unit, integers
