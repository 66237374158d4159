"""Hydrogen bonds of one frame: whose a hydrogen is, which bonds there are, which sites a water joins."""

from typing import Any

import numpy as np
import numpy.typing as npt
from MDAnalysis.lib.distances import calc_angles, capped_distance

from himach import kernels

__all__ = ["find_bonds", "joined_sites", "pair_hydrogens"]

Ints = npt.NDArray[np.int64]


def pair_hydrogens(donors: Any, hydrogens: Any) -> tuple[Ints, Ints]:
    """Return the indices of donors and hydrogens within 1.2 Å in the present frame, one row per pair."""
    near = capped_distance(
        donors.positions, hydrogens.positions, 1.2, box=donors.universe.dimensions, return_distances=False
    )
    donor, hydrogen = near[np.lexsort(near.T[::-1])].T  # the same order in every frame
    return donors.indices[donor], hydrogens.indices[hydrogen]


def find_bonds(
    frame: Any, donors: Ints, hydrogens: Ints, acceptors: Ints, distance: float, angle: float
) -> tuple[Ints, Ints]:
    """Return the hydrogen bonds of a frame.

    Parameters
    ----------
    frame
        A frame as map() gets it.
    donors, hydrogens
        Indices of donors and their hydrogens, int64 (n,), one row a pair.
    acceptors
        Indices of acceptors, int64 (m,).
    distance
        Largest distance in Å between donor and acceptor.
    angle
        The angle at the hydrogen is larger than this, degrees.

    Returns
    -------
    int64 (n_bonds,) twice: for each bond the row of its donor and hydrogen, and the row of its acceptor.
    """
    donor_positions, acceptor_positions = frame.positions[donors], frame.positions[acceptors]
    near, distances = kernels.neighbors(donor_positions, acceptor_positions, distance, frame.box)
    donor, acceptor = near[distances > 1].T  # closer is the donor itself
    triples = donor_positions[donor], frame.positions[hydrogens[donor]], acceptor_positions[acceptor]
    bonded = np.degrees(calc_angles(*triples, box=frame.box)) > angle
    return donor[bonded], acceptor[bonded]


def joined_sites(waters: Ints, sites: Ints) -> Ints:
    """Return the pairs of sites that are bonded to one water, int64 (n, 2), each once, the lesser site first.

    Parameters
    ----------
    waters, sites
        Of each bond its water and its site, numbers from 0 to 2^32 - 1, int64 (m,), in any order.

    Examples
    --------
    >>> joined_sites(np.array([7, 8, 7, 7, 8, 9]), np.array([3, 1, 2, 1, 1, 2])).tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    water, site = np.divmod(np.unique(waters * 2**32 + sites), 2**32)
    pairs = [np.empty((0, 2), np.int64)]
    for step in range(1, len(water)):
        is_same = water[step:] == water[:-step]
        if not is_same.any():
            break
        pairs.append(np.column_stack([site[:-step][is_same], site[step:][is_same]]))
    return np.unique(np.concatenate(pairs), axis=0)
