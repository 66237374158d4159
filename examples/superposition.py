"""How frames are laid over a reference: `Superposition`, `Reference`, by fit, reference and weights of an analysis."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import MDAnalysis
import numpy as np
import numpy.typing as npt

import himach
from himach import kernels
from himach.atoms import Atoms
from himach.examples.common import select

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe

__all__ = ["Reference", "Superposition", "get_masses", "get_weights", "reference_positions"]

Floats = npt.NDArray[np.float64]


class Superposition:
    """Lays the atoms of a frame over a reference, by some of them.

    Parameters
    ----------
    fit
        The atoms that are laid over the reference as well as they can; None: nothing is moved.
    reference
        float32 (n, 3), Å: where these atoms are in the reference.
    weights
        float64 (n,) of these atoms; None for equal ones.

    Attributes
    ----------
    indices
        Indices of the atoms that are fitted, int64 (n,); none where nothing is moved.
    """

    def __init__(
        self, fit: "AtomGroup | None", reference: npt.ArrayLike | None = None, weights: Floats | None = None
    ) -> None:
        self.indices = np.empty(0, np.int64) if fit is None else fit.indices
        self.reference = np.empty((0, 3), np.float32) if reference is None else np.array(reference, np.float32)
        self.weights = weights

    @classmethod
    def make(cls, universe: "Universe", analysis: Any, reference: "Reference | None" = None) -> "Superposition":
        """Make the superposition of an analysis from its parameters `selection`, `fit`, `reference` and `weights`.

        `fit` is a selection, ``none``, or for `selection` the word ``selection`` or None; `reference` is as in
        `Reference`, unless one is given; `weights` is ``none`` or ``mass``, and may be left out.

        Raises
        ------
        himach.UsageError
            If a selection selects nothing, or the reference cannot be read or has other atoms.
        """
        if analysis.fit == "none":
            return cls(None)
        parameter = "selection" if analysis.fit in (None, "selection") else "fit"
        fit = select(universe, analysis, parameter)
        reference = reference or Reference(universe, analysis, analysis.reference)
        return cls(fit, reference.positions(fit, parameter), get_weights(fit, analysis))

    def onto(self, reference: npt.ArrayLike) -> "Superposition":
        """Return a superposition of the same atoms, with the same weights, on another reference, (n, 3), Å."""
        other = Superposition(None, reference, self.weights)
        other.indices = self.indices
        return other

    def move(self, fitted: npt.NDArray[np.float32], positions: npt.NDArray[np.float32]) -> Floats:
        """Return positions moved so that the fitted atoms are superposed on the reference.

        Parameters
        ----------
        fitted
            float32 (n, 3), Å: ``frame.positions[superposition.indices]``.
        positions
            float32 (m, 3), Å: the atoms that are moved.

        Returns
        -------
        float64 (m, 3), Å.
        """
        if not len(self.indices):
            return positions.astype(np.float64)
        rotation, shift = kernels.superposition(fitted, self.reference, self.weights)
        return positions @ rotation.T + shift


class Reference:
    """The structure with which an analysis compares frames.

    Parameters
    ----------
    universe
        That of setup().
    analysis
        Whose it is; errors name it.
    reference
        A file that MDAnalysis reads, a frame number, or None for the first selected frame.

    Raises
    ------
    himach.UsageError
        If the file cannot be read, or there is no such frame.
    """

    def __init__(self, universe: "Universe", analysis: Any, reference: int | str | None) -> None:
        self._analysis = analysis
        self._prefix = f"{analysis.label()}: reference {reference!r}"
        self._file: Universe | None = None
        self._frame_positions: npt.NDArray[np.float32] | None = None
        if isinstance(reference, int):
            self._frame_positions = np.asarray(universe.trajectory.positions_at(reference))
        elif reference is not None:
            if not Path(reference).is_file():
                raise himach.UsageError(f"{self._prefix} is no file, nor the number of a frame")
            try:
                self._file = MDAnalysis.Universe(str(reference), to_guess=())
            except (ValueError, TypeError, OSError, AttributeError) as error:
                raise himach.UsageError(f"{self._prefix}: {error}") from error

    def positions(self, atoms: "AtomGroup", parameter: str, selection: str | None = None) -> npt.NDArray[np.float32]:
        """Return the positions of atoms in the reference, float32 (n, 3), Å.

        Parameters
        ----------
        atoms
            Atoms of the Universe of setup().
        parameter
            Name of the parameter that selects them.
        selection
            Selection of the atoms in a file; None: the parameter's value.

        Raises
        ------
        himach.UsageError
            If the file has another number of such atoms, or different ones.
        """
        if self._frame_positions is not None:
            return np.asarray(self._frame_positions[atoms.indices])
        if self._file is None:
            return np.asarray(atoms.positions)
        selection = getattr(self._analysis, parameter) if selection is None else selection
        try:
            matches = Atoms.from_value(selection).select(self._file, parameter)
        except himach.UsageError as error:
            raise himach.UsageError(f"{self._prefix}: {error}") from error
        if len(matches) != len(atoms):
            raise himach.UsageError(
                f"{self._prefix} has {len(matches)} atoms of {parameter} {selection!r}, the trajectory has {len(atoms)}"
            )
        for atom, other in zip(atoms, matches, strict=True):
            if hasattr(atom, "name") and hasattr(other, "name") and atom.name != other.name:
                raise himach.UsageError(
                    f"{self._prefix} has other atoms of {parameter}: {other.name} of residue {other.resid} where the "
                    f"trajectory has {atom.name} of residue {atom.resid}"
                )
        try:
            return np.asarray(matches.positions)
        except AttributeError:
            raise himach.UsageError(f"{self._prefix} has no positions; give a file of a structure") from None


def reference_positions(universe: "Universe", analysis: Any, parameter: str) -> npt.NDArray[np.float32]:
    """Return the positions of a selection in the reference of an analysis, float32 (n, 3), Å.

    Parameters
    ----------
    universe
        Universe of setup().
    analysis
        Its attribute `reference` is as in `Reference`.
    parameter
        Name of the parameter that selects the atoms.

    Raises
    ------
    himach.UsageError
        As `Reference` does.
    """
    return Reference(universe, analysis, analysis.reference).positions(select(universe, analysis, parameter), parameter)


def get_weights(atoms: "AtomGroup", analysis: Any) -> Floats | None:
    """Return the masses of atoms, float64 (n,), where an analysis has ``weights="mass"``; else None."""
    return get_masses(atoms, analysis) if getattr(analysis, "weights", "none") == "mass" else None


def get_masses(atoms: "AtomGroup", analysis: Any) -> Floats:
    """Return the masses of atoms, float64 (n,), from the topology, or guessed by MDAnalysis from elements.

    Raises
    ------
    himach.UsageError
        If there are none.
    """
    masses = np.asarray(getattr(atoms, "masses", np.zeros(len(atoms))), np.float64)
    if not np.all(masses >= 0) or not np.any(masses > 0):
        raise himach.UsageError(f"{analysis.label()}: the topology has no masses of the selected atoms")
    return masses


def describe_fit(fit: str | None, onto: str = "") -> str:
    """Describe for `Analysis.methods` what is superposed by the parameter `fit`; `onto` says on what."""
    if fit == "none":
        return "without superposition"
    atoms = "the same atoms" if fit in (None, "selection") else "{fit}"
    return f"after superposition of {atoms}{onto} by the quaternion method [10.1107/S0108767305015266]"
