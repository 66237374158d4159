"""How dipole moments of molecules are oriented along an axis of the box."""

from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels, uncertainty
from himach.examples.charges import get_charges
from himach.examples.common import WATER_RESIDUES, box_vectors, check_positive, select
from himach.examples.drawing import draw_band, draw_legend
from himach.examples.liquids.grids import Layers
from himach.examples.molecules import Centers

#: What sums of cosines and heights are counted in, so that they are exact.
FINE = 2**32


class DipoleOrientation(himach.Analysis):
    """Orientation of molecules' dipole moments along an axis of the box: mean cosine and order in layers.

    The angle θ is between the dipole moment of a molecule, from minus to plus, and the normal of the layers, which is
    the axis in a rectangular box. A molecule is in the layer of its centre of mass. Layers grow with the box. Molecules
    are made whole in each frame.

    Parameters
    ----------
    selection
        Selection of the atoms: whole molecules. The dipole moment of a charged one is about its centre of mass.
    axis
        Box vector across which layers lie.
    bins
        Number of layers.
    center
        Selection of atoms whose centre (of geometry) is the zero of positions, through the periodic boundary, in each
        frame. None: positions are those of the trajectory, in the box from 0.
    charges
        Charges of atoms in e where the topology has none, or wrong ones: a list of ``SELECTION = CHARGE``.
    """

    name: ClassVar[str] = "dipole-orientation"
    caption: ClassVar[str] = "Orientation of the dipole moments of {selection} along {axis}, averaged over frames."

    selection: str = WATER_RESIDUES
    axis: Literal["x", "y", "z"] = "z"
    bins: int = 50
    center: str | None = None
    charges: list[str] | None = None

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        center = "" if self.center is None else ", from the centre of {center}"
        return (
            "The cosine of the angle θ between the dipole moments of the molecules of {selection} and {axis}, and the "
            "order parameter (3 cos² θ - 1)/2, were averaged over frames in {bins} layers across {axis}" + center + "."
        )

    def setup(self, universe):
        check_positive(self, "bins")
        if universe.dimensions is None:
            raise himach.UsageError(f"{self.label()}: the trajectory has no box, which layers need")
        self.layers = Layers(universe, self)
        atoms = select(universe, self, "selection")
        self.molecules = Centers(atoms, self, by="molecule")
        selected = np.isin(self.molecules.indices, atoms.indices)
        self.atom_charges = np.where(selected, get_charges(universe.atoms[self.molecules.indices], self), 0)

    def atoms(self, universe):
        return universe.atoms[self.molecules.indices], universe.atoms[self.layers.atoms]

    def map(self, frame):
        if frame.box is None:
            raise himach.UsageError("the frame has no box, which layers need; select frames with a box")
        molecules = self.molecules
        vectors = box_vectors(frame.box[np.newaxis])[0]
        whole = kernels.unwrap(frame.positions[molecules.indices], molecules.tree, frame.box)
        centers = kernels.centers(whole, molecules.groups, molecules.masses)
        arms = self.atom_charges[:, np.newaxis] * (whole - centers[molecules.groups])
        n = len(centers)
        moments = np.column_stack([np.bincount(molecules.groups, arm, n) for arm in arms.T])
        sizes = np.linalg.norm(moments, axis=1)
        normal = np.linalg.inv(vectors)[:, self.layers.along]
        cosines = np.divide(moments @ normal, sizes * np.linalg.norm(normal), out=np.zeros(n), where=sizes > 0)
        layers, height = self.layers.layers(centers, frame.positions, vectors), self.layers.height(vectors)
        sums = [np.bincount(layers, values, self.bins) for values in (cosines, 1.5 * cosines**2 - 0.5)]
        counts = np.bincount(layers, minlength=self.bins)
        whole_sums = np.concatenate([np.rint(FINE * np.append(np.concatenate(sums), height)).astype(np.int64), counts])
        yield "layers", uncertainty.block_row(frame.number, whole_sums)

    def combine(self, key, series):
        return uncertainty.add_blocks(series.values)

    reduce = combine

    def finish(self, results):
        frames, sums = uncertainty.split_blocks(results["layers"])
        parts = np.split(sums, [self.bins, 2 * self.bins, 2 * self.bins + 1], axis=1)
        (cosines, orders, heights), counts = (part / FINE for part in parts[:3]), parts[3]

        def mean(values):
            total = counts.sum(axis=0)
            value = np.where(total > 0, values.sum(axis=0) / np.maximum(total, 1), np.nan)
            return himach.Column(value, estimate=(values, counts))

        columns = {
            "position": self.layers.column(float(heights.sum() / frames.sum())),
            "cosine": mean(cosines),
            "order": mean(orders),
            "molecules": himach.Column(counts.sum(axis=0) / frames.sum(), role="label"),
        }
        return {"orientation": himach.Table(columns)}

    def plot(self, outcome, axes):
        table = outcome["orientation"]
        for column, label in (("cosine", "cos θ"), ("order", "(3 cos² θ - 1)/2")):
            (line,) = axes.plot(table["position"], table[column], label=label)
            draw_band(axes, table["position"], table, column, line.get_color())
        place = f"position along {self.axis}" if self.center is None else f"{self.axis} from the centre"
        axes.set(xlabel=table.label("position", place), ylabel="mean over molecules")
        axes.set_title("Orientation of dipole moments")
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.margins(x=0)
        axes.grid(alpha=0.3)
        draw_legend(axes)
