"""How dense atoms are: along an axis of the box, or in space."""

import warnings
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

import himach
from himach import uncertainty
from himach.examples.charges import whole_weights
from himach.examples.common import WATER, box_vectors, check_positive, select
from himach.examples.drawing import draw_band, draw_legend
from himach.examples.liquids.grids import Grid, Layers, draw_mean_along, open_dx

#: Keys of counts: in layers, in voxels, and outside of the grid.
LAYERS, VOXELS, OUTSIDE = 0, 1, 2
#: Unit of counted fractions of volumes and lengths.
FINE = 2**32
#: g/cm³ in u/Å³.
G_CM3 = 1 / 0.602214076
#: Margin of a grid around the atoms of the first frame, Å.
PADDING = 2.0
#: Voxels of a grid, at most: 128 MB.
MOST_VOXELS = 2**24
#: Layers of fewer atoms have at least the limits of independent events.
FEW = 20
UNITS = {"number": "Å⁻³", "mass": "g/cm³", "charge": "e/Å³", "electron": "e/Å³"}


class Density(himach.Analysis):
    """Density of atoms along an axis of the box, or on a grid in space; of their number, mass, charge or electrons.

    Layers lie between two faces of the box and are as many in each frame: they grow with the box, and positions are
    those in the mean box. The density of a layer is what is in it, summed over frames, over its volume, summed over
    frames.

    Parameters
    ----------
    selection
        Selection of the atoms.
    axis
        Box vector across which layers lie: positions are along z, say, where the box is rectangular. Of a grid, the
        axis that the plot looks along.
    bins
        Number of layers.
    center
        Selection of atoms whose centre (of geometry) is the zero of positions, through the periodic boundary, in each
        frame. None: positions are those of the trajectory, in the box from 0.
    weights
        What is counted: ``number`` (Å⁻³), ``mass`` (g/cm³), ``charge`` (e/Å³), or ``electron`` (e/Å³): the atomic
        number, less the charge where it is known.
    charges
        Charges of atoms in e where the topology has none, or wrong ones: a list of ``SELECTION = CHARGE``.
    grid
        Side of cubic voxels in Å: the density in space instead of the one along an axis. The grid stays, and reaches
        2 Å beyond the selected atoms of the first selected frame. None: layers.
    """

    name: ClassVar[str] = "density"
    caption: ClassVar[str] = "The {weights} density of {selection}, averaged over frames."

    selection: str = WATER
    axis: Literal["x", "y", "z"] = "z"
    bins: int = 100
    center: str | None = None
    weights: Literal["number", "mass", "charge", "electron"] = "number"
    charges: list[str] | None = None
    grid: float | None = None

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        where = "in {bins} layers across the {axis} axis of the box" if self.grid is None else "in voxels of {grid} Å"
        center = "" if self.center is None else ", from the centre of {center}"
        return f"The {{weights}} density of {{selection}} was averaged over frames {where}{center}."

    def setup(self, universe):
        check_positive(self, "bins", *(["grid"] if self.grid is not None else []))
        atoms = select(universe, self, "selection")
        self.indices = atoms.indices
        self.layers = Layers(universe, self)
        self.weight_unit, self.integer_weights = whole_weights(atoms, self)
        if (self.center is not None or self.grid is None) and universe.dimensions is None:
            raise himach.UsageError("density: the trajectory has no box, which layers and center need; set grid alone")
        if self.grid is not None:
            positions = universe.atoms.positions
            box = None if self.center is None else universe.dimensions
            self.voxels = Grid(self.grid_positions(positions, box), self.grid, PADDING)
            if self.voxels.n_voxels > MOST_VOXELS:
                raise himach.UsageError(
                    f"density: grid={self.grid:g} makes {self.voxels.n_voxels} voxels, and {MOST_VOXELS} are the most; "
                    "give a greater spacing, or select atoms that are nearer to each other"
                )

    def atoms(self, universe):
        return universe.atoms[self.indices], universe.atoms[self.layers.atoms]

    def map(self, frame):
        box = None if self.center is None and self.grid is not None else frame.box
        if box is None and (self.center is not None or self.grid is None):
            raise himach.UsageError("the frame has no box, which layers and center need; select frames with a box")
        if self.grid is not None:
            voxels = self.voxels.voxels(self.grid_positions(frame.positions, box))
            counts = self.count(voxels, self.voxels.n_voxels + 1)
            yield himach.Pairs([VOXELS], counts[np.newaxis, :-1])
            yield himach.Pairs([OUTSIDE], [np.count_nonzero(voxels == self.voxels.n_voxels)])
            return
        vectors = box_vectors(box[np.newaxis])[0]
        layers = self.layers.layers(frame.positions[self.indices], frame.positions, vectors)
        volume, height = np.prod(np.diagonal(vectors)), self.layers.height(vectors)
        sizes = [int(volume), int(volume % 1 * FINE), int(height), int(height % 1 * FINE)]
        sums = np.append(self.count(layers, self.bins), sizes)
        yield himach.Pairs([LAYERS], uncertainty.block_row(frame.number, sums)[np.newaxis])

    def count(self, places, n):
        """Return the sum of weights in each of n places, int64 (n,)."""
        return np.bincount(places, self.integer_weights, n).astype(np.int64)

    def grid_positions(self, positions, box):
        """Return the positions of the selected atoms on a grid, (n, 3) in Å."""
        atoms = positions[self.indices]
        if self.center is None:
            return atoms
        vectors = box_vectors(np.asarray(box)[np.newaxis])[0]
        shares = [self.layers.fractions(atoms, positions, vectors, along) for along in range(3)]
        parts = [(part - np.rint(part))[:, np.newaxis] * vector for part, vector in zip(shares, vectors, strict=True)]
        return sum(parts).astype(np.float32)

    def combine(self, key, series):
        return self.reduce(key, series)

    def reduce(self, key, series):
        return uncertainty.add_blocks(series.values) if key == LAYERS else np.sum(series.values, axis=0)

    def finish(self, results):
        factor = self.weight_unit * (G_CM3 if self.weights == "mass" else 1)
        return self.in_space(results, factor) if self.grid is not None else self.in_layers(results[LAYERS], factor)

    def in_layers(self, blocks, factor):
        in_block, sums = uncertainty.split_blocks(blocks)
        whole, fine = sums[:, [-4, -2]], sums[:, [-3, -1]]
        volumes, heights = (whole + fine / FINE).T
        counts, volumes = sums[:, :-4], volumes / self.bins
        height, total = heights.sum() / in_block.sum(), counts.sum(axis=0)
        density = factor * total / volumes.sum()

        def limits(level):
            band = uncertainty.of_blocks(factor * counts, volumes, level)
            if self.weights != "number":
                return replace(band, value=density)
            count_limits, rare = uncertainty.count(total, level), total < FEW  # blocks are unreliable for few atoms
            low = np.where(rare, np.minimum(band.low, count_limits.low / volumes.sum()), band.low)
            high = np.where(rare, np.maximum(band.high, count_limits.high / volumes.sum()), band.high)
            return replace(band, value=density, low=low, high=high)

        column = himach.Column(density, UNITS[self.weights], estimate=limits)
        return {"profile": himach.Table({"position": self.layers.column(height), "density": column})}

    def in_space(self, results, factor):
        share = results[OUTSIDE] / (len(self.indices) * len(self.frames))
        if share > 0.01:
            warnings.warn(
                f"density: {100 * share:.3g} % of the atoms lie outside of the grid, which reaches {PADDING:g} Å "
                "beyond those of the first frame; wrap the trajectory, or set center",
                stacklevel=2,
            )
        density = factor * results[VOXELS] / (len(self.frames) * self.grid**3)
        density = density.reshape(self.voxels.shape)
        edges = self.voxels.edges
        extent = {
            "axis": list("xyz"),
            "from": himach.Column([edge[0] for edge in edges], "Å", role="label"),
            "to": himach.Column([edge[-1] for edge in edges], "Å", role="label"),
            "voxels": himach.Column(list(self.voxels.shape), role="label"),
        }
        return {"extent": himach.Table(extent), "grid": density, "volume": open_dx(density, edges, self.grid)}

    def plot(self, outcome, axes):
        unit = UNITS[self.weights]
        if self.grid is not None:
            label = f"{self.weights} density / ({unit})"
            draw_mean_along(axes, outcome["grid"], outcome["extent"], self.axis, label, self.weights == "charge")
            return
        table = outcome["profile"]
        (line,) = axes.plot(table["position"], table["density"])
        draw_band(axes, table["position"], table, "density", line.get_color())
        place = f"position along {self.axis}" if self.center is None else f"{self.axis} from the centre"
        axes.set(xlabel=table.label("position", place), ylabel=f"{self.weights} density / ({unit})")
        axes.set_title("Density in layers of the box")
        axes.margins(x=0)
        if self.weights == "charge":
            axes.axhline(0, color="grey", linewidth=0.8)
        else:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        draw_legend(axes)
