"""``himach bench kernels``: the time each kernel takes for a frame of AdK, beside MDAnalysis on the same data."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from himach import kernels

from ..harness.data import samples
from ..harness.interleave import seconds
from ..harness.options import beside, repeats

__all__ = ["main"]

#: A measurement goes on for so long, and for so many calls at least.
SECONDS, CALLS = 0.5, 3


class Case(NamedTuple):
    """What is measured: the kernel, the peer, and how far their answers may be apart (None: not at all)."""

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    apart: float | None = None


@repeats(3)
@beside("kernels")
def main(repeats: int) -> None:
    """Time each of himach.kernels on a frame of AdK, beside MDAnalysis's function on the same data."""
    universe = _universe()
    print(f"{'kernel, on AdK in water (47,681 atoms)':<58} {'himach':>9} {'MDAnalysis':>11} {'ratio':>7}")
    for case in _cases(universe):
        _check(case)
        turns = [(_time(case.ours), _time(case.peer)) for _ in range(repeats)]
        ours, peer = (statistics.median(column) * 1e3 for column in zip(*turns, strict=True))
        ratio = statistics.median(b / a for a, b in turns)
        print(f"{case.name:<58} {ours:>6.3f} ms {peer:>8.2f} ms {ratio:>6.0f}x", flush=True)


def _universe() -> Any:
    import MDAnalysis as mda

    _, tpr, xtc = samples()
    universe = mda.Universe(tpr)
    universe.load_new(xtc, refresh_offsets=False)
    universe.trajectory[3]
    return universe


def _cases(universe: Any) -> Iterator[Case]:
    from MDAnalysis.analysis import rms
    from MDAnalysis.lib import distances

    box, every = universe.dimensions, universe.atoms.positions
    water, protein, ions, polar = (
        universe.select_atoms(selection).positions
        for selection in ("name OW", "protein", "resname NA+", "protein and name N* O*")
    )

    def counted(a: Any, b: Any) -> Any:
        return np.histogram(distances.capped_distance(a, b, 8.0, box=box)[1], 100, (0, 8.0))[0]

    yield Case(
        f"within: {len(water)} water oxygens, 3.5 Å of {len(protein)} protein atoms",
        lambda: kernels.within(water, protein, 3.5, box),
        lambda: np.unique(distances.capped_distance(protein, water, 3.5, box=box, return_distances=False)[:, 1]),
    )
    yield Case(
        f"neighbors: {len(polar)} polar protein atoms with themselves, 3 Å",
        lambda: _in_order(*kernels.neighbors(polar, polar, 3.0, box)),
        lambda: _in_order(*distances.capped_distance(polar, polar, 3.0, box=box)),
    )
    yield Case(
        "neighbors: pairs of water oxygens, 3.5 Å",
        lambda: kernels.neighbors(water, None, 3.5, box)[1].size,
        lambda: distances.self_capped_distance(water, 3.5, box=box)[1].size,
    )
    heavy = universe.select_atoms("protein and not name H*")
    heavy_positions, of = heavy.positions, heavy.resindices
    yield Case(
        f"contacts: {heavy.n_residues} residues, {len(heavy)} heavy atoms, 4.5 Å",
        lambda: kernels.contacts(heavy_positions, of, None, None, 4.5, box, False),
        lambda: _joined(of[distances.self_capped_distance(heavy_positions, 4.5, box=box, return_distances=False)]),
    )
    yield Case(
        f"histogram: {len(ions)} ions and water oxygens, 8 Å",
        lambda: kernels.histogram(ions, water, 8.0, 100, box),
        lambda: counted(ions, water),
    )
    yield Case(
        "histogram: pairs of water oxygens, 8 Å",
        lambda: 2 * kernels.histogram(water, None, 8.0, 100, box),
        lambda: counted(water, water) - len(water) * (np.arange(100) == 0),
    )
    alpha = universe.select_atoms("name CA").positions
    turned = alpha[:, [1, 2, 0]] + np.float32(0.1) * alpha[::-1]
    yield Case(
        f"rmsd: {len(alpha)} C-alpha atoms",
        lambda: kernels.rmsd(turned, alpha),
        lambda: rms.rmsd(turned, alpha, center=True, superposition=True),
        1e-3,
    )
    chain = universe.select_atoms("protein")
    chain_positions, chain_masses = chain.positions, chain.masses
    yield Case(
        f"gyration: shape of {len(chain)} protein atoms",
        lambda: np.linalg.eigvalsh(kernels.gyration(chain_positions, chain_masses)),
        lambda: np.sort(chain.gyration_moments()),
        1e-3,
    )
    quadruples = np.array([each.indices for each in universe.select_atoms("protein").residues.phi_selections() if each])
    yield Case(
        f"dihedrals: phi of {len(quadruples)} residues",
        lambda: kernels.dihedrals(every, quadruples, box),
        lambda: np.degrees(distances.calc_dihedrals(*(every[place] for place in quadruples.T), box=box)),
        2e-3,
    )
    bonds = chain.bonds.indices
    yield Case(
        f"order_parameters: {len(bonds)} bonds of the protein",
        lambda: kernels.order_parameters(every, bonds, box=box) / 2**30,
        lambda: _order(distances.minimize_vectors(every[bonds[:, 1]] - every[bonds[:, 0]], box)),
        1e-2,
    )
    solvent = universe.select_atoms("resname SOL")
    masses, residues = solvent.masses, solvent.resindices - solvent.resindices[0]
    positions = solvent.positions
    yield Case(
        f"centers: of mass of {solvent.n_residues} waters",
        lambda: kernels.centers(positions, residues, masses),
        lambda: solvent.center(masses, compound="residues"),
        1e-3,
    )
    yield Case("wrap: all atoms", lambda: kernels.wrap(every, box), lambda: distances.apply_PBC(every, box))


def _order(vectors: Any) -> Any:
    """Return the sum of the order parameters of bonds along z."""
    return np.sum(1.5 * vectors[:, 2] ** 2 / np.sum(vectors**2, axis=1) - 0.5)


def _joined(pairs: Any) -> Any:
    """Return each pair of groups once, in order, of those that are not one."""
    return np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)


def _in_order(pairs: Any, found: Any) -> Any:
    """Return distances in the order of their pairs, which is not the peer's."""
    return found[np.lexsort(pairs.T[::-1])]


def _check(case: Case) -> None:
    ours, peer = case.ours(), case.peer()
    equal = np.array_equal(ours, peer) if case.apart is None else np.allclose(ours, peer, rtol=0, atol=case.apart)
    if not equal:
        raise AssertionError(f"{case.name}: the answers differ")


def _time(call: Callable[[], Any]) -> float:
    """Return the median processor time of a call in seconds."""
    taken: list[float] = []
    while len(taken) < CALLS or (sum(taken) < SECONDS and len(taken) < 1000):
        taken.append(seconds(call, time.thread_time))
    return statistics.median(taken)
