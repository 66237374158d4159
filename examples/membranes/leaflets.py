"""Membranes: which atoms are lipids, where their middle is, and in which leaflet each lipid is."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from MDAnalysis.lib.mdamath import triclinic_vectors

import himach
from himach import kernels
from himach.examples.common import select
from himach.examples.groups import residue_numbers
from himach.examples.membranes.tails import letters

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe

__all__ = [
    "BETWEEN",
    "HEADGROUPS",
    "LIPIDS",
    "LOWER",
    "UPPER",
    "Leaflets",
    "Placement",
    "find_connected_parts",
    "turn_to_z",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Sterols, by the names of common force fields.
STEROLS = "resname CHL1 CHOL CLR CHL ERG SITO"
#: Lipids, likewise: phosphatidylcholines (DLPC, POPC, ...) and so on, sphingomyelins, cardiolipins, sterols.
LIPIDS = f"resname ??PC ??PE ??PG ??PS ??PA ??PI* ?SM ??SM CDL* TOCL* or {STEROLS}"
#: An atom of each of their headgroups: phosphorus or its bead, and the oxygen of sterols or its bead.
HEADGROUPS = f"({LIPIDS}) and (name P P8 P31 PO4 or ({STEROLS} and name O1 O3 ROH))"

LOWER, BETWEEN, UPPER = -1, 0, 1
#: Least part of the lipids in the smaller leaflet; with less, the graph has not found the leaflets.
LEAST_PART = 0.1


class Placement(NamedTuple):
    """Headgroups and lipids of one frame.

    Attributes
    ----------
    positions
        float64 (n_heads, 3), Å: atoms of headgroups, moved by whole periods to where the membrane's middle is.
    vectors
        float64 (3, 3), Å: the vectors of the box.
    heights
        float64 (n_lipids,), Å: how far above the midplane the lipids' headgroups are.
    leaflets
        int8 (n_lipids,): LOWER, UPPER, or BETWEEN.
    """

    positions: Floats
    vectors: Floats
    heights: Floats
    leaflets: npt.NDArray[np.int8]


class Leaflets:
    """Finds the leaflets of a membrane, by the parameters of an analysis.

    These are `headgroups`, a selection of at least one atom of each lipid, `leaflets`, ``z`` or ``graph``, and
    `normal`, ``x``, ``y`` or ``z``, which is called z in all results; if it has them, `bins`, `cutoff` and `midplane`.

    Attributes
    ----------
    indices
        Indices of the atoms whose positions `place` takes, int64 (n,), ascending.
    resindices, kinds
        Of each lipid the index and the name of its residue.
    numbers
        int64 (n_heads,): which lipid each atom of a headgroup belongs to.
    """

    def __init__(self, universe: "Universe", analysis: Any) -> None:
        heads = select(universe, analysis, "headgroups")
        self.numbers, lipids = residue_numbers(heads)
        self.resindices: Ints = lipids.resindices.astype(np.int64)
        self.kinds: list[str] = [str(name) for name in getattr(lipids, "resnames", ["lipid"] * len(lipids))]
        self.graph = analysis.leaflets == "graph"
        self.bins: int = getattr(analysis, "bins", 1)
        self.normal: str = analysis.normal
        self.cutoff: float = getattr(analysis, "cutoff", 15.0)
        self.midplane: float = getattr(analysis, "midplane", 0.0)
        lipid_atoms = lipids.atoms
        self.molecules: Ints = np.empty(0, np.int64)
        if hasattr(universe, "bonds"):  # some force fields make a lipid of several residues
            self.molecules = heads.fragindices.astype(np.int64)
            lipid_atoms |= universe.atoms[np.isin(universe.atoms.fragindices, self.molecules)]
        heavy = lipid_atoms[letters(lipid_atoms) != "H"]
        self.indices: Ints = np.union1d(heads.indices, heavy.indices)
        self.heads = np.searchsorted(self.indices, heads.indices)
        self.sizes = np.bincount(self.numbers)
        if len(lipids) < 2:
            raise himach.UsageError(
                f"{analysis.label()}: headgroups={analysis.headgroups!r} selects atoms of one residue, and a membrane "
                "has more; select one atom of each lipid"
            )

    def place(self, positions: npt.NDArray[np.float32], box: npt.ArrayLike | None) -> Placement:
        """Return the placement of headgroups from the positions of the atoms `indices`.

        Raises
        ------
        himach.UsageError
            If there is no box, or the graph of headgroups has no two parts of some size.
        """
        if box is None:
            raise himach.UsageError("the frame has no box, and leaflets are found in a periodic one; select others")
        positions, box = turn_to_z(self.normal, positions, box)
        vectors = triclinic_vectors(box).astype(np.float64)
        atoms = center_positions(positions, vectors)
        heads = atoms[self.heads]
        heights = np.bincount(self.numbers, heads[:, 2] - self.midplanes(atoms, vectors)) / self.sizes
        if self.graph:
            parts = find_connected_parts(positions[self.heads], self.numbers, len(self.sizes), self.cutoff, box)
            mean = [np.mean(heights[parts == part]) for part in (LOWER, UPPER)]
            leaflets = parts if mean[0] <= mean[1] else -parts
        else:
            leaflets = np.sign(heights).astype(np.int8)
        leaflets[np.abs(heights) <= self.midplane] = BETWEEN
        return Placement(heads, vectors, heights, leaflets)

    def find_lipids(self, atoms: "AtomGroup") -> Ints:
        """Return the lipid number of each atom, int64 (n,), by its residue or else by its molecule; -1 for none."""
        numbers = _look_up(self.resindices, np.arange(len(self.resindices)), atoms.resindices)
        if (numbers < 0).any() and len(self.molecules):
            numbers = np.where(numbers < 0, _look_up(self.molecules, self.numbers, atoms.fragindices), numbers)
        return numbers

    def midplanes(self, atoms: Floats, vectors: Floats) -> Floats:
        """Return the z of the midplane at each headgroup: the mean of lipids' atoms in its patch of the membrane."""
        if self.bins == 1:
            return np.full(len(self.heads), atoms[:, 2].mean())
        patch = assign_patches(atoms, vectors, self.bins)
        counts = np.bincount(patch)
        return np.asarray((np.bincount(patch, atoms[:, 2]) / np.maximum(counts, 1))[patch[self.heads]])

    def thickness(self, placement: Placement) -> float:
        """Return the distance in z between the headgroups of both leaflets, over the patches that contain both."""
        patch = assign_patches(placement.positions, placement.vectors, self.bins)
        leaflet = placement.leaflets[self.numbers]
        sides = []
        for side in (LOWER, UPPER):
            is_side = leaflet == side
            counts = np.bincount(patch[is_side], minlength=self.bins**2)
            sums = np.bincount(patch[is_side], placement.positions[is_side, 2], minlength=self.bins**2)
            sides.append(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
        between = sides[1] - sides[0]
        defined = between[np.isfinite(between)]
        return float(defined.mean()) if len(defined) else float("nan")


def turn_to_z(
    normal: str, positions: npt.NDArray[np.float32], box: npt.ArrayLike | None
) -> tuple[npt.NDArray[np.float32], npt.ArrayLike | None]:
    """Return positions (n, 3) and box (6,) with the axes renamed so that the normal of the membrane is z.

    Raises
    ------
    himach.UsageError
        If the normal is x or y, and the box is not rectangular.
    """
    if normal == "z":
        return positions, box
    axes = [1, 2, 0] if normal == "x" else [2, 0, 1]
    if box is not None:
        sizes = np.asarray(box)
        if not (sizes[3:] == 90).all():
            raise himach.UsageError(f"normal={normal} needs a rectangular box; turn the trajectory so that it is z")
        box = np.concatenate([sizes[axes], sizes[3:]])
    return np.ascontiguousarray(positions[:, axes]), box


def _look_up(keys: Ints, numbers: Ints, requested: npt.NDArray[Any]) -> Ints:
    """Return the numbers of the requested keys, -1 where there is none."""
    table = np.full(max(keys.max(), requested.max()) + 1, -1, np.int64)
    table[keys] = numbers
    return np.asarray(table[requested])


def center_positions(positions: npt.NDArray[np.float32], vectors: Floats) -> Floats:
    """Return positions moved by whole periods to about their middle along z, which may be at the box boundary.

    The middle is a mean on a circle. Headgroups alone have none if membrane and water are equally thick: atoms of tails
    are needed.
    """
    height = vectors[2, 2]
    angles = positions[:, 2] * np.float32(2 * np.pi / height)
    middle = np.arctan2(np.sin(angles).sum(), np.cos(angles).sum()) / (2 * np.pi)
    atoms = positions.astype(np.float64)
    return np.asarray(atoms - np.rint(atoms[:, 2] / height - middle)[:, np.newaxis] * vectors[2])


def assign_patches(positions: Floats, vectors: Floats, bins: int) -> Ints:
    """Return the patch of each position, int64 (n,), of `bins` along each vector of the box."""
    along_b = positions[:, 1] / vectors[1, 1]
    along_a = (positions[:, 0] - along_b * vectors[1, 0]) / vectors[0, 0]
    a, b = (np.minimum((part % 1 * bins).astype(np.int64), bins - 1) for part in (along_a, along_b))
    return np.asarray(a * bins + b)


def find_connected_parts(
    positions: npt.NDArray[np.float32], numbers: Ints, n_lipids: int, cutoff: float, box: npt.ArrayLike
) -> npt.NDArray[np.int8]:
    """Return the two largest parts of a membrane whose lipids are connected, as ``LeafletFinder`` does.

    Parameters
    ----------
    positions
        float32 (n, 3), Å: atoms of headgroups.
    numbers
        int64 (n,): the lipid of each.
    n_lipids
        Number of lipids.
    cutoff
        Lipids with atoms within this distance in Å are connected.
    box
        float32 (6,): lengths in Å and angles in degrees.

    Returns
    -------
    int8 (n_lipids,): LOWER for one part, UPPER for the other, BETWEEN for lipids in neither.

    Raises
    ------
    himach.UsageError
        If all are connected, or one part has next to no lipids.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = numbers[kernels.neighbors(positions, None, cutoff, box, return_distances=False)]
    links = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(n_lipids, n_lipids))
    _, labels = connected_components(links, directed=False)
    sizes = np.bincount(labels)
    largest = np.sort(sizes)[::-1][:2].tolist()
    if len(largest) < 2 or largest[1] < LEAST_PART * n_lipids:
        raise himach.UsageError(
            f"leaflets='graph' finds no two leaflets: of {n_lipids} lipids {' and '.join(map(str, largest))} are "
            f"connected at cutoff={cutoff:g}; choose another cutoff, or headgroups that stay at the surface"
        )
    first, second = np.argsort(-sizes, kind="stable")[:2]
    return np.where(labels == first, LOWER, np.where(labels == second, UPPER, BETWEEN)).astype(np.int8)
