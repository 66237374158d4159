"""How atoms are arranged around others."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np
from MDAnalysis.lib.mdamath import box_volume

import himach
from himach import kernels, uncertainty
from himach.examples.common import WATER, check_positive, select, warn_of_nm, width
from himach.examples.drawing import draw_band, draw_legend, in_words
from himach.examples.molecules import numbers_by, points_of

#: Keys of what is counted, and of the least width of the box.
COUNTS, WIDTH = 0, 1
#: What fractions of volumes are counted in.
FINE = 2**32
#: Bins of fewer pairs have at least the limits of events that know nothing of each other.
FEW = 20
#: Coordination numbers that the plot shows, in those of the first shell.
SHELLS = 4


class Rdf(himach.Analysis):
    """Radial distribution function g(r) between two selections, and coordination numbers n(r).

    g(r) is 1 at distances where the atoms know nothing of each other; n(r) is how many atoms of b there are within r of
    one of a. Atoms that are in both selections are not paired with themselves: with equal selections this is
    ``MDAnalysis.analysis.rdf.InterRDF`` with ``exclusion_block=(1, 1)``, with different atoms InterRDF as it is.

    Parameters
    ----------
    a
        Selection of the atoms in the middle.
    b
        Selection of the atoms around them.
    by
        What is counted: atoms, or centres of mass of residues or of molecules, made whole, of their selected atoms. A
        residue or molecule is not paired with itself, whichever of its atoms are in a and in b.
    exclude
        Pairs of atoms that are not counted, nor in the density: those of one residue, or of one molecule, which is what
        bonds join, or a residue where the topology has no bonds.
    r_max
        Largest distance in Å. Beyond half the least width of the box atoms have more images than the one that is
        counted, and g(r) and n(r) are too small: that is warned of.
    bins
        Number of bins from 0 to r_max.
    """

    name: ClassVar[str] = "rdf"
    references: ClassVar[tuple[str, ...]] = ("10.1016/j.jcp.2011.01.048",)
    caption: ClassVar[str] = (
        "Radial distribution function g(r) of {b} around {a}, and coordination number n(r), marked at the first "
        "minimum of g(r)."
    )

    a: str = WATER
    b: str = WATER
    by: Literal["atom", "residue", "molecule"] = "atom"
    exclude: Literal["none", "same-residue", "same-molecule"] = "none"
    r_max: float = 10.0
    bins: int = 100

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        whose = "{b} around {a}" if self.a != self.b else "{a} around each other"
        of = "" if self.by == "atom" else f" (centres of mass, by {self.by})"
        left = "" if self.exclude == "none" else f" Pairs of the {self.exclude.replace('-', ' ')} were left out."
        return (
            f"The radial distribution function of {whose}{of} was computed with minimum images up to "
            "{r_max} Å in {bins} bins [10.1016/j.jcp.2011.01.048], normalised by the mean density of pairs in the box; "
            f"coordination numbers are its sums.{left}"
        )

    def setup(self, universe):
        check_positive(self, "r_max", "bins")
        if universe.dimensions is None:
            raise himach.UsageError("rdf: the trajectory has no box, and g(r) is relative to the density in the box")
        a_atoms, b_atoms = select(universe, self, "a"), select(universe, self, "b")
        self.equal = np.array_equal(a_atoms.indices, b_atoms.indices)
        self.around = points_of(a_atoms, self, self.by)
        self.found = self.around if self.equal else points_of(b_atoms, self, self.by)
        self.groups = [self.groups_of(universe, points) for points in (self.around, self.found)]
        self.n_excluded = self.count_excluded()
        if len(self.around.numbers) * len(self.found.numbers) == self.n_excluded:
            one = self.by if self.exclude == "none" or self.by == "molecule" else self.exclude.removeprefix("same-")
            raise himach.UsageError(
                f"{self.label()}: a and b are one {one}, the same ({self.a!r}, {self.b!r}), which is not paired with "
                "itself; select more atoms"
            )

    def groups_of(self, universe, points):
        """Return a number for each point, of which two with one number are no pair; None: only a point with itself."""
        exclude = self.exclude.removeprefix("same-")
        if self.by == "atom":
            return None if exclude == "none" else numbers_by(universe, self, exclude)[points.numbers]
        if self.by == "residue" and exclude == "molecule":
            of_residue = np.zeros(len(universe.residues), np.int64)
            of_residue[universe.atoms.resindices] = numbers_by(universe, self, exclude)
            return of_residue[points.numbers]
        return points.numbers

    def count_excluded(self):
        """Return how many pairs of a and b are not counted at any distance."""
        a, b = self.groups
        if a is None:
            return len(np.intersect1d(self.around.numbers, self.found.numbers))
        sizes = [np.bincount(groups, minlength=1 + max(a.max(), b.max())) for groups in (a, b)]
        return int(np.dot(*sizes))

    def atoms(self, universe):
        return universe.atoms[self.around.indices], universe.atoms[self.found.indices]

    def map(self, frame):
        if frame.box is None:
            raise himach.UsageError("the frame has no box, and g(r) is relative to the density in it; select others")
        volume = float(box_volume(frame.box))
        yield himach.Pairs([WIDTH], [width(frame.box, volume)])
        sums = np.append(self.count(frame), [int(volume), int(volume % 1 * FINE)])
        yield himach.Pairs([COUNTS], uncertainty.block_row(frame.number, sums)[np.newaxis])

    def count(self, frame):
        """Return how many pairs there are in each bin, int64 (bins,)."""
        (of_a, of_b), a = self.groups, self.around.of(frame)
        if self.equal:
            return 2 * kernels.histogram(a, None, self.r_max, self.bins, frame.box, of_a)
        counts = kernels.histogram(a, self.found.of(frame), self.r_max, self.bins, frame.box, of_a, of_b)
        if of_a is None:
            counts[0] -= self.n_excluded  # an atom and itself
        return counts

    def combine(self, key, series):
        return self.reduce(key, series)

    def reduce(self, key, series):
        return np.min(series.values) if key == WIDTH else uncertainty.add_blocks(series.values)

    def finish(self, results):
        n_frames, n_a = len(self.frames), len(self.around.numbers)
        if self.r_max > results[WIDTH] / 2:
            warnings.warn(
                f"{self.label()}: r_max={self.r_max:g} is more than half the least width of the box, "
                f"{results[WIDTH] / 2:.4g} Å; beyond that g(r) and n(r) are too small",
                stacklevel=2,
            )
        in_block, sums = uncertainty.split_blocks(results[COUNTS])
        *pairs, volumes, fractions = sums.sum(axis=0)
        edges = np.linspace(0, self.r_max, self.bins + 1)
        shells = 4 / 3 * np.pi * np.diff(edges**3)
        n_pairs = n_a * len(self.found.numbers) - self.n_excluded
        density = n_pairs / ((volumes + fractions / FINE) / n_frames)
        half = Fraction(str(self.r_max)) / (2 * self.bins)  # in decimals: 0.15, where products of floats are not
        middles = [float((2 * i + 1) * half) for i in range(self.bins)]
        ends = [float(2 * (i + 1) * half) for i in range(self.bins)]
        each = 1 + self.equal  # with equal selections each pair is counted twice
        # Each block by its own volume.
        volume = (sums[:, -2] + sums[:, -1] / FINE) / in_block
        of_block = sums[:, :-2] * volume[:, np.newaxis] / (n_pairs * shells)
        pairs = np.array(pairs)
        warn_of_nm(self, "r_max", pairs.any())
        g = estimated(pairs, n_frames * density * shells, of_block, in_block, each)
        within = np.cumsum(pairs), float(n_frames * n_a), np.cumsum(sums[:, :-2], axis=1) / n_a
        return {
            "rdf": himach.Table({"r": himach.Column(middles, "Å", role="x"), "g": g}),
            "coordination": himach.Table(
                {"r": himach.Column(ends, "Å", role="x"), "n": estimated(*within, in_block, each)}
            ),
        }

    def plot(self, outcome, axes):
        table, within = outcome["rdf"], outcome["coordination"]
        (line,) = axes.plot(table["r"], table["g"], label="g(r)")
        draw_band(axes, table["r"], table, "g", line.get_color())
        axes.axhline(1, color="grey", linewidth=0.8, linestyle="--")
        axes.set(xlabel=table.label("r", "distance r"), ylabel="g(r)", title="Radial distribution function")
        axes.set_xlim(0, self.r_max)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        numbers = axes.twinx()
        numbers.plot(within["r"], within["n"], color="C1", linestyle="-.")
        numbers.set_ylabel("coordination number n(r)", color="C1")
        numbers.set_ylim(bottom=0)
        axes.plot([], [], color="C1", linestyle="-.", label="n(r): b within r of a")
        minimum = first_minimum(table["g"])
        if minimum is not None:
            row = int(np.argmin(np.abs(within["r"] - table["r"][minimum])))
            r, n = within["r"][row], within["n"][row]
            axes.axvline(r, color="C1", linewidth=0.6, linestyle=":")
            numbers.plot(r, n, "o", color="C1", mec="black", zorder=4)
            numbers.set_ylim(top=min(SHELLS * n, 1.05 * np.max(within["n"])))
            words = in_words(within, "n", f"first minimum: n({r:.3g} Å)", row)
            axes.plot([], [], "o", color="C1", mec="black", label=words)
        draw_legend(axes, below=True)


def first_minimum(g):
    """Return the row of the least g(r) between the highest peak and where it is above 1 again; None if it is not."""
    peak = int(np.argmax(g))
    below = np.flatnonzero(g[peak:] < 1)
    above = np.flatnonzero(g[peak + below[0] :] > 1) if len(below) else []
    if not len(above):
        return None
    start = peak + below[0]
    return int(start + np.argmin(g[start : start + above[0]]))


def estimated(pairs, expected, of_block, in_block, each):
    """Return a column of numbers of pairs over those expected, with limits by blocks; each pair is counted so often."""
    value = pairs / expected

    def limits(level):
        found = uncertainty.of_blocks(of_block, in_block, level)
        low, high = value - (found.value - found.low), value + (found.high - found.value)
        # Of few pairs the blocks know too little.
        few = uncertainty.count(pairs // each, level)
        rare = pairs < FEW * each
        low = np.where(rare, np.minimum(low, few.low * each / expected), low)
        high = np.where(rare, np.maximum(high, few.high * each / expected), high)
        return replace(found, value=value, low=low, high=high)

    return himach.Column(value, estimate=limits)
