"""How atoms are arranged around others."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
from MDAnalysis.lib.mdamath import box_volume

import himach
from himach import kernels, uncertainty
from himach.examples.common import WATER, check_positive, draw_band, select, width

#: Keys of what is counted, and of the least width of the box.
COUNTS, WIDTH = 0, 1
#: What fractions of volumes are counted in.
FINE = 2**32
#: Bins of fewer pairs have at least the limits of events that know nothing of each other.
FEW = 20


class Rdf(himach.Analysis):
    """Radial distribution function g(r) between two selections.

    It is 1 at distances where the atoms know nothing of each other. Atoms that are in both selections are not paired
    with themselves: with equal selections this is ``MDAnalysis.analysis.rdf.InterRDF`` with ``exclusion_block=(1, 1)``,
    with different atoms InterRDF as it is.

    Parameters
    ----------
    a
        Selection of the atoms in the middle.
    b
        Selection of the atoms around them.
    r_max
        Largest distance in Å. Beyond half the least width of the box atoms have more images than the one that is
        counted, and g(r) is too small: that is warned of.
    bins
        Number of bins from 0 to r_max.
    """

    name: ClassVar[str] = "rdf"

    a: str = WATER
    b: str = WATER
    r_max: float = 10.0
    bins: int = 100

    def setup(self, universe):
        check_positive(self, "r_max", "bins")
        if universe.dimensions is None:
            raise himach.UsageError("rdf: the trajectory has no box, and g(r) is relative to the density in the box")
        self.a_atoms, self.b_atoms = select(universe, self, "a").indices, select(universe, self, "b").indices
        self.n_common = len(np.intersect1d(self.a_atoms, self.b_atoms))
        if len(self.a_atoms) * len(self.b_atoms) == self.n_common:
            raise himach.UsageError(
                f"{self.label()}: a and b are one atom, the same ({self.a!r}, {self.b!r}), and an atom is not paired "
                "with itself; select more atoms"
            )
        self.equal = np.array_equal(self.a_atoms, self.b_atoms)

    def atoms(self, universe):
        return universe.atoms[self.a_atoms], universe.atoms[self.b_atoms]

    def map(self, frame):
        if frame.box is None:
            raise himach.UsageError("the frame has no box, and g(r) is relative to the density in it; select others")
        volume = float(box_volume(frame.box))
        yield himach.Pairs([WIDTH], [width(frame.box, volume)])
        sums = np.append(self.count(frame), [int(volume), int(volume % 1 * FINE)])
        yield himach.Pairs([COUNTS], uncertainty.block_row(frame.number, sums)[np.newaxis])

    def count(self, frame):
        """Return how many pairs there are in each bin, int64 (bins,)."""
        a = frame.positions[self.a_atoms]
        if self.equal:
            return 2 * kernels.histogram(a, None, self.r_max, self.bins, frame.box)
        counts = kernels.histogram(a, frame.positions[self.b_atoms], self.r_max, self.bins, frame.box)
        counts[0] -= self.n_common  # an atom and itself
        return counts

    def combine(self, key, series):
        return self.reduce(key, series)

    def reduce(self, key, series):
        return np.min(series.values) if key == WIDTH else uncertainty.add_blocks(series.values)

    def finish(self, results):
        n_frames = len(self.frames)
        if self.r_max > results[WIDTH] / 2:
            warnings.warn(
                f"{self.label()}: r_max={self.r_max:g} is more than half the least width of the box, "
                f"{results[WIDTH] / 2:.4g} Å; beyond that g(r) is too small",
                stacklevel=2,
            )
        in_block, sums = uncertainty.split_blocks(results[COUNTS])
        *pairs, volumes, fractions = sums.sum(axis=0)
        edges = np.linspace(0, self.r_max, self.bins + 1)
        shells = 4 / 3 * np.pi * np.diff(edges**3)
        n_pairs = len(self.a_atoms) * len(self.b_atoms) - self.n_common
        density = n_pairs / ((volumes + fractions / FINE) / n_frames)
        half = Fraction(str(self.r_max)) / (2 * self.bins)  # in decimals: 0.15, where products of floats are not
        r = [float((2 * i + 1) * half) for i in range(self.bins)]
        pairs, ideal = np.array(pairs), n_frames * density * shells
        g = pairs / ideal
        # Each block by its own volume.
        volume = (sums[:, -2] + sums[:, -1] / FINE) / in_block
        of_block = sums[:, :-2] * volume[:, np.newaxis] / (n_pairs * shells)

        def limits(level):
            found = uncertainty.of_blocks(of_block, in_block, level)
            low, high = g - (found.value - found.low), g + (found.high - found.value)
            # Of few pairs the blocks know too little. With equal selections each is counted twice.
            each = 1 + self.equal
            few = uncertainty.count(pairs // each, level)
            rare = pairs < FEW * each
            low = np.where(rare, np.minimum(low, few.low * each / ideal), low)
            high = np.where(rare, np.maximum(high, few.high * each / ideal), high)
            return replace(found, value=g, low=low, high=high)

        column = himach.Column(g, estimate=limits)
        return {"rdf": himach.Table({"r": himach.Column(r, "Å"), "g": column})}

    def plot(self, outcome, axes):
        table = outcome["rdf"]
        (line,) = axes.plot(table["r"], table["g"])
        draw_band(axes, table["r"], table, "g", line.get_color())
        axes.axhline(1, color="grey", linewidth=0.8, linestyle="--", label="1: the mean density of b in the box")
        axes.legend(loc="lower right")
        axes.set(xlabel=table.label("r", "distance r"), ylabel="g(r)", title="Radial distribution function")
        axes.set_xlim(0, self.r_max)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
