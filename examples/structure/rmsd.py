"""How far a structure has moved from where it began."""

import warnings
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels
from himach.examples.common import select
from himach.examples.drawing import draw_legend, draw_mean, draw_series, time_axis
from himach.examples.groups import named_selections, split_name
from himach.examples.molecules import index_bonds, warn_of_cut_molecules
from himach.examples.structure.radii import get_elements
from himach.examples.superposition import Reference, Superposition, describe_fit, get_masses
from himach.transformations import find_bonds

#: Atoms of a ligand, at most: the number of their orders grows exponentially.
MOST_SYMMETRIC = 100


class Rmsd(himach.Analysis):
    """Root-mean-square deviation from a reference, after superposition.

    Atoms have equal weights, unless masses are asked for, as in ``MDAnalysis.analysis.rms.RMSD``. Groups are further
    atoms that are compared where the superposition puts them. Molecules must be whole.

    Parameters
    ----------
    selection
        Selection of the atoms that are compared.
    fit
        Selection of the atoms that are superposed on the reference; ``selection``: those that are compared; ``none``:
        frames are compared as they are, without moving.
    reference
        A file with the structure to compare with, or the number of a frame of the trajectory, from 0. None: the first
        selected frame.
    symmetric
        Whether atoms of ligands that symmetry makes alike may stand for one another, such as those of a ring that has
        turned: the least deviation of all orders of atoms that keep elements and bonds, by spyrmsd (`himach[ligand]`).
        Select heavy atoms alone, 100 at most.
    weights
        Weights of atoms in the superposition and in the deviation: ``none`` for equal ones, or ``mass``.
    groups
        Selections of further atoms that are compared, each a column of its own: ``core=resid 5:30`` or, without a name,
        ``resid 5:30``.
    """

    name: ClassVar[str] = "rmsd"
    references: ClassVar[tuple[str, ...]] = ("10.1107/S0108767305015266",)
    caption: ClassVar[str] = "Root-mean-square deviation of {selection} from the reference against time."

    selection: str = "protein and backbone"
    fit: str = "selection"
    reference: int | str | None = None
    symmetric: bool = False
    weights: Literal["none", "mass"] = "none"
    groups: list[str] = []  # noqa: RUF012 - a parameter's default

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        target = "the first selected frame" if self.reference is None else "the structure {reference}"
        target = "frame {reference} of the trajectory" if isinstance(self.reference, int) else target
        weights = " Atoms were weighted by mass." if self.weights == "mass" else ""
        groups = " Beside it, that of {groups} was computed where the superposition puts them." if self.groups else ""
        matches = " Symmetric atoms were matched by spyrmsd (Meli and Biggin, J. Cheminf. 12, 49, 2020)."
        return (
            f"The root-mean-square deviation of {{selection}} from {target} was computed {describe_fit(self.fit)}."
            f"{weights}{groups}{matches if self.symmetric else ''}"
        )

    def setup(self, universe):
        reference = Reference(universe, self, self.reference)
        self.superposition = Superposition.make(universe, self, reference)
        atoms = select(universe, self, "selection")
        warn_of_cut_molecules(self, atoms)
        compared = {"rmsd": (atoms, reference.positions(atoms, "selection"))}
        selections = dict(map(split_name, self.groups))
        for name, group in named_selections(universe, self, "groups").items():
            if name in ("time_ps", "rmsd", "frame"):
                raise himach.UsageError(f"rmsd: a group cannot be called {name!r}, a column has that name anyway")
            compared[name] = group, reference.positions(group, "groups", selections[name])
        self.names = list(compared)
        groups, positions = zip(*compared.values(), strict=True)
        self.indices = np.concatenate([group.indices for group in groups])
        self.positions = np.concatenate(positions)
        self.starts = np.cumsum([0, *map(len, groups[:-1])])
        weights = [np.ones(len(group)) if self.weights == "none" else get_masses(group, self) for group in groups]
        self.shares = np.concatenate([group_weights / group_weights.sum() for group_weights in weights])
        self.at_once = self.superposition.indices.tolist() == self.indices.tolist()  # which is faster
        if self.symmetric and self.groups and self.fit == "selection":
            raise himach.UsageError("rmsd: symmetric and groups need a fit of other atoms: set fit, or leave one out")
        self.targets = compared["rmsd"][1][symmetric_orders(atoms, self)] if self.symmetric else None

    def atoms(self, universe):
        return universe.atoms[self.indices], universe.atoms[self.superposition.indices]

    def map(self, frame):
        positions = frame.positions[self.indices]
        if self.at_once:
            targets, weights = self.targets if self.symmetric else [self.positions], self.superposition.weights
            yield himach.Row(rmsd=min(kernels.rmsd(positions, target, weights) for target in targets))
            return
        moved = self.superposition.move(frame.positions[self.superposition.indices], positions)
        deviations = moved - self.positions
        squares = np.add.reduceat(np.einsum("ij,ij->i", deviations, deviations) * self.shares, self.starts)
        if self.symmetric:
            n = self.targets.shape[1]
            squares[0] = (((moved[:n] - self.targets) ** 2).sum(axis=2) @ self.shares[:n]).min()
        yield himach.Row(**dict(zip(self.names, np.sqrt(squares).tolist(), strict=True)))

    def finish(self, rows):
        columns = {name: himach.Column(rows[name], "Å", estimate=True) for name in self.names}
        return {"rmsd": himach.Table({"time_ps": himach.Column(rows["time_ps"], "ps"), **columns})}

    def plot(self, outcome, axes):
        table = outcome["rmsd"]
        scale, label = time_axis(table["time_ps"], "time")
        _, *names = table
        for name in names:
            draw_series(axes, scale * table["time_ps"], table[name], label="" if len(names) == 1 else name)
        target = "the first frame" if self.reference is None else Path(str(self.reference)).name
        axes.set(xlabel=label, ylabel=table.label("rmsd", "RMSD"), title=f"Deviation from {target}")
        if len(names) == 1:
            draw_mean(axes, table, "rmsd")
        draw_legend(axes)
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)


def symmetric_orders(atoms, analysis):
    """Return the orders of atoms that keep elements and bonds, int64 (k, n)."""
    prefix = f"{analysis.label()}: symmetric"
    if len(atoms) > MOST_SYMMETRIC:
        raise himach.UsageError(f"{prefix} is for {MOST_SYMMETRIC} atoms at most, and {len(atoms)} are selected")
    try:
        from spyrmsd import graph
    except ImportError:
        raise himach.UsageError(f"{prefix} needs spyrmsd: pip install 'himach[ligand]'") from None
    try:
        bonds = index_bonds(find_bonds(atoms), atoms.indices)
    except himach.UsageError as error:
        raise himach.UsageError(f"{prefix}: {error}") from error
    adjacency = np.zeros((len(atoms), len(atoms)), np.int64)
    adjacency[bonds[:, 0], bonds[:, 1]] = adjacency[bonds[:, 1], bonds[:, 0]] = 1
    elements = np.unique(get_elements(atoms), return_inverse=True)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts that no bonds join
        molecule = graph.graph_from_adjacency_matrix(adjacency, elements)
        matches = graph.match_graphs(molecule, molecule)
    return np.array([np.asarray(order)[np.argsort(first)] for first, order in matches])
