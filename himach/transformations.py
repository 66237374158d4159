"""Transformations of frames by the kernels: `Whole`, `NoJump`, `Cluster`, `Center`, `Wrap` and `Fit`.

With a selection, they are for `transform` of `himach.run`. With a group of atoms, they are transformations of
MDAnalysis, for ``universe.trajectory.add_transformations()`` of any Universe, and in setup() of an analysis: each
except `NoJump` works on the positions of the current frame alone, in place.
"""

import warnings
from abc import ABC, abstractmethod
from copy import copy
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from himach import kernels
from himach.atoms import Atoms
from himach.errors import UsageError

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe
    from MDAnalysis.coordinates.timestep import Timestep

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Transformation(ABC):
    """Changes a frame in place, by default by the positions of `indices`; can be restricted to frames of some atoms."""

    name: ClassVar[str]
    turns = False  # whether atoms are rotated without the box
    groups: Ints | None = None  # of the atoms in `indices`: those that move as one, numbered from 0 on
    weights: npt.NDArray[np.float64] | None = None  # for the centres of groups

    def __init__(self, atoms: "AtomGroup | str" = "all") -> None:
        self.selection = atoms if isinstance(atoms, str) else None
        if not isinstance(atoms, str):
            self._bind(atoms)

    def bind(self, universe: "Universe") -> "Transformation":
        """Return this transformation for a Universe at its current frame; raise UsageError if that is impossible."""
        bound = copy(self)
        everything = self.selection == "all"
        bound._bind(
            universe.atoms if everything else Atoms.from_value(self.selection).select_fixed(universe, self.name)
        )
        return bound

    def _bind(self, atoms: "AtomGroup") -> None:
        self.indices: Ints = atoms.indices

    @abstractmethod
    def __call__(self, ts: "Timestep") -> "Timestep":
        """Change a frame, and return it."""

    def needed(self, requested: Flags) -> Flags:
        """Return which atoms a frame must have to transform the requested ones, bool (n_atoms,)."""
        needed = requested.copy()
        needed[self.indices] = True
        return needed

    def restricted_to(self, atoms: Ints) -> Any:
        """Return this transformation for frames of these ascending atoms, which must include all `needed` ones."""
        restricted = copy(self)
        restricted._take(atoms)
        return restricted

    def _take(self, atoms: Ints) -> None:
        kept = np.isin(self.indices, atoms)
        self.indices = np.searchsorted(atoms, self.indices[kept])
        if self.groups is not None and self.weights is not None:
            self.groups, self.weights = _consecutive(self.groups[kept]), self.weights[kept]


class Whole(Transformation):
    """Makes molecules whole: each bonded atom is put next to the one that it is bonded to.

    Parameters
    ----------
    atoms
        Whose molecules are made whole, all by default. Their bonds are those of the topology; where it has none, they
        are guessed from distances in the present frame (``atoms.guess_bonds()``).

    Raises
    ------
    UsageError
        If there are no bonds, and none can be guessed.

    Notes
    -----
    The first atom of each molecule stays. Bonds must be shorter than half the distance of two images.
    """

    name = "whole"

    def _bind(self, atoms: "AtomGroup") -> None:
        self.bonds = bonds_outwards(find_bonds(atoms), atoms.universe.atoms.n_atoms)

    def __call__(self, ts: "Timestep") -> "Timestep":
        """Make molecules whole; a frame without a box stays as it is."""
        if ts.dimensions is not None and len(self.bonds):
            ts.positions = kernels.unwrap(ts.positions, self.bonds, ts.dimensions, out=_place(ts.positions))
        return ts

    def needed(self, requested: Flags) -> Flags:
        """Return all atoms of the molecules."""
        return _whole_groups(requested, molecules(self.bonds, len(requested)))

    def _take(self, atoms: Ints) -> None:
        kept = np.isin(self.bonds, atoms).all(axis=1)
        self.bonds = np.searchsorted(atoms, self.bonds[kept])


class NoJump:
    """Follows atoms through the periodic boundary, from the first frame of a run on.

    It needs other frames, so `transform` of a run has it, and setup() has not: all frames are read once more for it,
    before the first map().
    """

    name = "nojump"
    selection = "all"
    parallelizable = False  # as in MDAnalysis for transformations that need other frames


class Cluster(Transformation):
    """Moves molecules by whole periods to one another: an aggregate that the boundary cuts becomes one.

    Parameters
    ----------
    atoms
        Atoms of the molecules that are moved, by the bonds, each whole; their centre, with equal weights, stands for
        the molecule. The first molecule stays, and the next one is always that nearest to those in place.

    Raises
    ------
    UsageError
        If there are no bonds, and none can be guessed.
    """

    name = "cluster"

    def _bind(self, atoms: "AtomGroup") -> None:
        numbers = molecules(find_bonds(atoms), atoms.universe.atoms.n_atoms)
        self.indices = np.flatnonzero(np.isin(numbers, numbers[atoms.indices]))
        self.groups = _consecutive(numbers[self.indices])
        self.weights = np.isin(self.indices, atoms.indices).astype(np.float64)

    def __call__(self, ts: "Timestep") -> "Timestep":
        """Move molecules; a frame without a box stays as it is."""
        if ts.dimensions is not None and len(self.indices):
            centers = kernels.centers(ts.positions[self.indices], self.groups, self.weights)
            shifts = gather_points(centers, ts.dimensions) - centers
            vectors = ts.triclinic_dimensions.astype(np.float64)
            periods = np.rint(shifts @ np.linalg.inv(vectors)) @ vectors
            ts.positions[self.indices] += periods[self.groups].astype(np.float32)
        return ts

    def needed(self, requested: Flags) -> Flags:
        """Return the atoms that are requested, and all molecules if atoms of one are."""
        return super().needed(requested) if requested[self.indices].any() else requested


class Center(Transformation):
    """Moves all atoms so that the centre of some is in the middle of the box.

    Parameters
    ----------
    atoms
        Whose centre, with equal weights, comes to the middle. They have to be whole.
    """

    name = "center"

    def __call__(self, ts: "Timestep") -> "Timestep":
        """Move all atoms.

        Raises
        ------
        UsageError
            If the frame has no box.
        """
        if ts.dimensions is None:
            raise UsageError(f"frame {ts.frame} has no box in whose middle a group could be")
        middle = ts.triclinic_dimensions.astype(np.float64).sum(axis=0) / 2
        shift = middle - kernels.centers(ts.positions[self.indices])[0]
        ts.positions = kernels.move(ts.positions, shift, out=_place(ts.positions))
        return ts


class Wrap(Transformation):
    """Moves atoms into the box by whole periods.

    Parameters
    ----------
    atoms
        The atoms that are moved, all by default.
    by
        What moves as one, by its centre of mass: ``"atoms"`` (each by itself), ``"residues"`` or ``"molecules"``, by
        the bonds. What moves as one has to be whole.

    Raises
    ------
    UsageError
        If molecules are asked for, and there are no bonds.
    """

    name = "wrap"

    def __init__(
        self, atoms: "AtomGroup | str" = "all", by: Literal["atoms", "residues", "molecules"] = "atoms"
    ) -> None:
        if by not in ("atoms", "residues", "molecules"):
            raise UsageError(f"wrap {by!r}: there is 'atoms', 'residues', 'molecules'")
        self.by = by
        super().__init__(atoms)

    def _bind(self, atoms: "AtomGroup") -> None:
        super()._bind(atoms)
        if self.by == "residues":
            self.groups = _consecutive(atoms.resindices)
        elif self.by == "molecules":
            self.groups = _consecutive(molecules(find_bonds(atoms), atoms.universe.atoms.n_atoms)[self.indices])
        if self.groups is not None:
            masses = np.asarray(getattr(atoms, "masses", np.zeros(len(atoms))), np.float64)
            has_mass = np.bincount(self.groups, masses) > 0
            self.weights = np.where(has_mass[self.groups], masses, 1)  # massless sites may be alone in a group

    def __call__(self, ts: "Timestep") -> "Timestep":
        """Move atoms into the box; a frame without a box stays as it is."""
        if ts.dimensions is not None:
            if len(self.indices) == len(ts.positions):
                place = _place(ts.positions)
                ts.positions = kernels.wrap(ts.positions, ts.dimensions, self.groups, self.weights, out=place)
            else:
                chosen = ts.positions[self.indices]
                ts.positions[self.indices] = kernels.wrap(chosen, ts.dimensions, self.groups, self.weights, out=chosen)
        return ts

    def needed(self, requested: Flags) -> Flags:
        """Return the atoms that are requested, and those that move with them."""
        if self.groups is None:
            return requested
        needed = requested.copy()
        needed[self.indices] = _whole_groups(requested[self.indices], self.groups)
        return needed


class Fit(Transformation):
    """Moves and turns all atoms so that some lie over a reference as well as they can.

    Parameters
    ----------
    atoms
        The atoms that are fitted, with equal weights.
    reference
        float32 (n, 3), Å: where they are in the reference; or a structure file that has the same selection; None: where
        they are now, in a run the first selected frame.

    Raises
    ------
    UsageError
        If the file cannot be read, or has another number of such atoms.

    Notes
    -----
    Velocities and forces turn with the atoms. The box stays as it is: periodic images no longer fit together, so that
    an analysis of a run which asks for the box is refused.
    """

    turns = True

    name = "fit"

    def __init__(self, atoms: "AtomGroup | str", reference: npt.ArrayLike | str | PathLike[str] | None = None) -> None:
        self.reference: Any = Path(reference) if isinstance(reference, (str, PathLike)) else reference
        super().__init__(atoms)

    def _bind(self, atoms: "AtomGroup") -> None:
        super()._bind(atoms)
        if self.reference is None:
            self.reference = atoms.positions
        elif isinstance(self.reference, Path):
            self.reference = self._in_file(atoms.n_atoms)
        self.reference = np.array(self.reference, np.float32)

    def _in_file(self, n_atoms: int) -> npt.NDArray[np.float32]:
        """Return the positions of the atoms in the reference file."""
        import MDAnalysis

        try:
            universe = MDAnalysis.Universe(str(self.reference), to_guess=())
            file_atoms = Atoms.from_value(self.selection).select_fixed(universe, self.name)
        except (ValueError, TypeError, OSError, AttributeError) as error:
            raise UsageError(f"reference {self.reference}: {error}") from error
        if len(file_atoms) != n_atoms:
            raise UsageError(
                f"reference {self.reference} has {len(file_atoms)} atoms of fit {self.selection!r}, the trajectory has "
                f"{n_atoms}"
            )
        return np.asarray(file_atoms.positions)

    def __call__(self, ts: "Timestep") -> "Timestep":
        """Move and turn all atoms."""
        rotation, shift = kernels.superposition(ts.positions[self.indices], self.reference)
        ts.positions = kernels.move(ts.positions, shift, rotation, out=_place(ts.positions))
        for name in ("velocities", "forces"):
            if getattr(ts, f"has_{name}"):
                vectors = getattr(ts, name)
                setattr(ts, name, kernels.move(vectors, np.zeros(3), rotation, out=_place(vectors)))
        return ts


def gather_points(points: npt.NDArray[np.float64], box: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return points (n, 3) as images next to one another, from the first on, the nearest to those in place next."""
    from MDAnalysis.lib.distances import minimize_vectors

    gathered = points.copy()
    distances, waiting, newest = np.full(len(points), np.inf), np.ones(len(points), bool), 0
    for _ in points:
        waiting[newest] = False
        steps = minimize_vectors(points - gathered[newest], np.asarray(box))
        lengths = np.linalg.norm(steps, axis=1)
        nearer = waiting & (lengths < distances)
        distances[nearer], gathered[nearer] = lengths[nearer], gathered[newest] + steps[nearer]
        newest = int(np.argmin(np.where(waiting, distances, np.inf)))
    return gathered


def _place(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
    """Return vectors if results can be written to them; else None."""
    flags = vectors.flags
    return vectors if flags.c_contiguous and flags.writeable and vectors.dtype == np.float32 else None


def _consecutive(groups: Ints) -> Ints:
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _whole_groups(requested: Flags, groups: Ints) -> Flags:
    """Return which atoms belong to a group with a requested atom."""
    return (np.bincount(groups, requested) > 0)[groups]


def find_bonds(atoms: "AtomGroup") -> Ints:
    """Return the bonds that define molecules, as pairs of atom indices, int64 (m, 2).

    They are the bonds of the topology; for residues of several atoms without any, they are guessed. An atom without a
    bond, such as the fourth site of a water, is connected to the first bonded atom of its residue.
    """
    from MDAnalysis.guesser import tables

    universe: Any = atoms.universe
    bonds = topology_bonds(universe)
    has_bonds = np.zeros(len(universe.residues), bool)
    has_bonds[universe.atoms.resindices[bonds].ravel()] = True
    is_single = np.bincount(universe.atoms.resindices, minlength=len(has_bonds)) < 2
    residues = atoms.residues[~(has_bonds | is_single)[atoms.residues.resindices]]
    if len(residues) and len(bonds):
        warnings.warn(
            f"the topology has no bonds of {len(residues)} residues, such as residue {residues[0].resid}: "
            "they are guessed from distances in the first frame",
            stacklevel=2,
        )
    if len(residues):
        try:
            unbonded = residues.atoms
            pointlike = dict.fromkeys(set(unbonded.types) - tables.vdwradii.keys(), 0.0)  # such as massless sites
            unbonded.guess_bonds(vdwradii=pointlike)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"the topology has no bonds, and they cannot be guessed: {error}") from error
        bonds = topology_bonds(universe)
    if not len(bonds):
        raise UsageError("the topology has no bonds, and no atoms are near enough for any; give one that has")
    bonded = np.zeros(universe.atoms.n_atoms, bool)
    bonded[bonds] = True
    residues = universe.atoms.resindices
    holders = np.full(len(universe.residues), -1)
    first, at = np.unique(residues[bonded], return_index=True)
    holders[first] = np.flatnonzero(bonded)[at]
    lone_atoms = np.flatnonzero(~bonded & (holders[residues] >= 0))
    return np.concatenate([bonds, np.column_stack([holders[residues[lone_atoms]], lone_atoms])])


def topology_bonds(universe: "Universe") -> Ints:
    """Return the bonds of a Universe's topology, int64 (m, 2): ``universe.bonds.indices`` without its sorting."""
    bonds = getattr(universe._topology, "bonds", None)
    return np.array([] if bonds is None else bonds.values, np.int64).reshape(-1, 2)


def molecules(bonds: Ints, n_atoms: int) -> Ints:
    """Return the number of each atom's molecule, int64 (n_atoms,): atoms connected by bonds."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(bonds), np.int8), (bonds[:, 0], bonds[:, 1])), shape=(n_atoms, n_atoms))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def bonds_outwards(bonds: Ints, n_atoms: int) -> Ints:
    """Return bonds in the order in which they make molecules whole, each from an atom already in place, (m, 2).

    The first atom of each molecule stays; each other atom has one bond towards it. Bonds that close rings are omitted.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    first = np.unique(molecules(bonds, n_atoms), return_index=True)[1]
    # Connect all first atoms to an extra node, so that one search reaches everything.
    rows, columns = np.concatenate([bonds, np.column_stack([np.full(len(first), n_atoms), first])]).T
    graph = coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(n_atoms + 1, n_atoms + 1)).tocsr()
    order, before = breadth_first_order(graph, n_atoms, directed=False)
    outwards = np.column_stack([before[order[1:]], order[1:]]).astype(np.int64)
    return np.asarray(outwards[outwards[:, 0] != n_atoms])
