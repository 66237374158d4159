"""How much of its native structure a molecule has: the fraction of native contacts, Q, in time."""

from typing import ClassVar, Literal

import numpy as np
from MDAnalysis.lib.distances import calc_bonds

import himach
from himach import kernels
from himach.examples.common import check_not_negative, check_positive, select
from himach.examples.drawing import draw_legend, draw_mean, draw_series, time_axis
from himach.examples.groups import heavy_atoms
from himach.examples.molecules import warn_of_cut_molecules
from himach.examples.superposition import Reference


class NativeContacts(himach.Analysis):
    """Fraction of native contacts, Q: the pairs of heavy atoms of a reference that are still near each other.

    A native contact is a pair of heavy atoms that are within the cutoff in the reference and whose residues are apart
    in sequence. By the method ``soft`` of Best, Hummer and Eaton a pair at the distance r, which is r0 in the
    reference, counts 1 / (1 + exp(beta (r - lambda r0))); by ``hard`` it counts where r is at most r0. Molecules must
    be whole.

    Parameters
    ----------
    a
        Selection of the atoms; hydrogens are left out.
    b
        Selection of the atoms that they touch; None: contacts within `a`.
    cutoff
        Largest distance in Å of a native contact in the reference.
    method
        How a pair counts: ``soft`` or ``hard``.
    beta
        Steepness in 1/Å of the soft count.
    tolerance
        The factor lambda of the soft count: how far a contact may stretch.
    exclude
        Residues of one segment that are nearer in sequence than this have no native contacts.
    reference
        A file with the native structure, or the number of a frame of the trajectory, from 0. None: the first selected
        frame.
    """

    name: ClassVar[str] = "native-contacts"
    references: ClassVar[tuple[str, ...]] = ("10.1073/pnas.1311599110",)
    caption: ClassVar[str] = "Fraction of native contacts against time."

    a: str = "protein"
    b: str | None = None
    cutoff: float = 4.5
    method: Literal["soft", "hard"] = "soft"
    beta: float = 5.0
    tolerance: float = 1.8
    exclude: int = 4
    reference: int | str | None = None

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        native = "the first selected frame" if self.reference is None else "the structure {reference}"
        native = "frame {reference} of the trajectory" if isinstance(self.reference, int) else native
        pairs = "within {a}" if self.b is None else "between {a} and {b}"
        counts = {
            "soft": "by the switching function of Best et al. [10.1073/pnas.1311599110], with a steepness of {beta} "
            "per Å and a tolerance of {tolerance}",
            "hard": "where it was not farther apart than there",
        }
        return (
            f"The fraction of native contacts was computed of the pairs of heavy atoms {pairs} that are within "
            f"{{cutoff}} Å in {native}, and whose residues are at least {{exclude}} apart in sequence."
            f" A pair counted {counts[self.method]}."
        )

    def setup(self, universe):
        check_positive(self, "cutoff", "beta", "tolerance")
        check_not_negative(self, "exclude")
        reference = Reference(universe, self, self.reference)
        first, positions = self.heavy_atoms(universe, reference, "a")
        second, others = (None, None) if self.b is None else self.heavy_atoms(universe, reference, "b")
        warn_of_cut_molecules(self, first if second is None else first | second)
        pairs, _ = kernels.neighbors(positions, others, self.cutoff)
        near = [group[pairs[:, side]] for side, group in enumerate((first, first if second is None else second))]
        same_segment = near[0].segindices == near[1].segindices
        is_native = ~same_segment | (np.abs(near[0].resindices - near[1].resindices) >= self.exclude)
        if not is_native.any():
            raise himach.UsageError(
                f"{self.label()}: the reference has no pair of atoms within {self.cutoff:g} Å whose residues are "
                f"{self.exclude} apart; choose other atoms, a larger cutoff, or another reference"
            )
        self.pairs = [group.indices[is_native] for group in near]
        others = positions if others is None else others
        self.native = calc_bonds(positions[pairs[is_native, 0]], others[pairs[is_native, 1]])

    def heavy_atoms(self, universe, reference, parameter):
        """Return the heavy atoms of a selection, and their positions in the reference, float32 (n, 3), Å."""
        atoms = select(universe, self, parameter)
        heavy = heavy_atoms(atoms)
        if not len(heavy):
            raise himach.UsageError(f"{self.label()}: parameter {parameter} selects hydrogens only")
        return heavy, reference.positions(atoms, parameter)[np.isin(atoms.indices, heavy.indices)]

    def atoms(self, universe):
        return tuple(universe.atoms[np.unique(indices)] for indices in self.pairs)

    def map(self, frame):
        distances = calc_bonds(*(frame.positions[indices] for indices in self.pairs))
        if self.method == "hard":
            yield himach.Row(q=float((distances <= self.native).mean()))
            return
        stretch = self.beta * (distances - self.tolerance * self.native)
        yield himach.Row(q=float((1 / (1 + np.exp(np.minimum(stretch, 700)))).mean()))

    def finish(self, rows):
        times, q = himach.Column(rows["time_ps"], "ps"), himach.Column(rows["q"], estimate=True)
        return {"q": himach.Table({"time_ps": times, "q": q})}

    def plot(self, outcome, axes):
        table = outcome["q"]
        scale, label = time_axis(table["time_ps"], "time")
        draw_series(axes, scale * table["time_ps"], table["q"])
        axes.set(xlabel=label, ylabel="Q", title="Fraction of native contacts")
        draw_mean(axes, table, "q")
        draw_legend(axes)
        axes.margins(x=0)
        axes.grid(alpha=0.3)
