"""How atoms are arranged around others."""

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
from himach.examples.molecules import make_points, numbers_by

#: Keys of counts, and of the least width of the box.
COUNTS, WIDTH = 0, 1
#: Unit of counted fractions of volumes.
FINE = 2**32
#: Bins of fewer pairs have at least the limits of independent events.
FEW = 20
#: Largest coordination number in the plot, relative to that of the first shell.
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
        pair = "{b} around {a}" if self.a != self.b else "{a} around each other"
        centres = "" if self.by == "atom" else f" (centres of mass, by {self.by})"
        excluded = "" if self.exclude == "none" else f" Pairs of the {self.exclude.replace('-', ' ')} were left out."
        return (
            f"The radial distribution function of {pair}{centres} was computed with minimum images up to "
            "{r_max} Å in {bins} bins [10.1016/j.jcp.2011.01.048], normalised by the mean density of pairs in the box; "
            f"coordination numbers are its sums.{excluded}"
        )

    def setup(self, universe):
        check_positive(self, "r_max", "bins")
        if universe.dimensions is None:
            raise himach.UsageError("rdf: the trajectory has no box, and g(r) is relative to the density in the box")
        a_atoms, b_atoms = select(universe, self, "a"), select(universe, self, "b")
        self.equal = np.array_equal(a_atoms.indices, b_atoms.indices)
        self.a_points = make_points(a_atoms, self, self.by)
        self.b_points = self.a_points if self.equal else make_points(b_atoms, self, self.by)
        self.groups = [self.number_groups(universe, points) for points in (self.a_points, self.b_points)]
        self.n_excluded = self.count_excluded()
        if len(self.a_points.numbers) * len(self.b_points.numbers) == self.n_excluded:
            kind = self.by if self.exclude == "none" or self.by == "molecule" else self.exclude.removeprefix("same-")
            raise himach.UsageError(
                f"{self.label()}: a and b are one {kind}, the same ({self.a!r}, {self.b!r}), which is not paired with "
                "itself; select more atoms"
            )

    def number_groups(self, universe, points):
        """Return a number for each point: points with one number are no pair; None: only a point with itself."""
        exclude = self.exclude.removeprefix("same-")
        if self.by == "atom":
            return None if exclude == "none" else numbers_by(universe, self, exclude)[points.numbers]
        if self.by == "residue" and exclude == "molecule":
            residue_groups = np.zeros(len(universe.residues), np.int64)
            residue_groups[universe.atoms.resindices] = numbers_by(universe, self, exclude)
            return residue_groups[points.numbers]
        return points.numbers

    def count_excluded(self):
        """Return the number of pairs of a and b that are not counted at any distance."""
        a, b = self.groups
        if a is None:
            return len(np.intersect1d(self.a_points.numbers, self.b_points.numbers))
        sizes = [np.bincount(groups, minlength=1 + max(a.max(), b.max())) for groups in (a, b)]
        return int(np.dot(*sizes))

    def atoms(self, universe):
        return universe.atoms[self.a_points.indices], universe.atoms[self.b_points.indices]

    def map(self, frame):
        if frame.box is None:
            raise himach.UsageError("the frame has no box, and g(r) is relative to the density in it; select others")
        volume = float(box_volume(frame.box))
        yield himach.Pairs([WIDTH], [width(frame.box, volume)])
        sums = np.append(self.count(frame), [int(volume), int(volume % 1 * FINE)])
        yield himach.Pairs([COUNTS], uncertainty.block_row(frame.number, sums)[np.newaxis])

    def count(self, frame):
        """Return the number of pairs in each bin, int64 (bins,)."""
        (a_groups, b_groups), a = self.groups, self.a_points.locate(frame)
        if self.equal:
            return 2 * kernels.histogram(a, None, self.r_max, self.bins, frame.box, a_groups)
        counts = kernels.histogram(a, self.b_points.locate(frame), self.r_max, self.bins, frame.box, a_groups, b_groups)
        if a_groups is None:
            counts[0] -= self.n_excluded  # an atom and itself
        return counts

    def combine(self, key, series):
        return self.reduce(key, series)

    def reduce(self, key, series):
        return np.min(series.values) if key == WIDTH else uncertainty.add_blocks(series.values)

    def finish(self, results):
        n_frames, n_a = len(self.frames), len(self.a_points.numbers)
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
        n_pairs = n_a * len(self.b_points.numbers) - self.n_excluded
        density = n_pairs / ((volumes + fractions / FINE) / n_frames)
        half = Fraction(str(self.r_max)) / (2 * self.bins)  # in decimals: 0.15, where products of floats are not
        middles = [float((2 * i + 1) * half) for i in range(self.bins)]
        outer_edges = [float(2 * (i + 1) * half) for i in range(self.bins)]
        multiplicity = 1 + self.equal  # with equal selections each pair is counted twice
        # Each block has its own volume.
        volume = (sums[:, -2] + sums[:, -1] / FINE) / in_block
        block_values = sums[:, :-2] * volume[:, np.newaxis] / (n_pairs * shells)
        pairs = np.array(pairs)
        warn_of_nm(self, "r_max", pairs.any())
        g = pair_column(pairs, n_frames * density * shells, block_values, in_block, multiplicity)
        within = np.cumsum(pairs), float(n_frames * n_a), np.cumsum(sums[:, :-2], axis=1) / n_a
        return {
            "rdf": himach.Table({"r": himach.Column(middles, "Å", role="x"), "g": g}),
            "coordination": himach.Table(
                {"r": himach.Column(outer_edges, "Å", role="x"), "n": pair_column(*within, in_block, multiplicity)}
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
            text = in_words(within, "n", f"first minimum: n({r:.3g} Å)", row)
            axes.plot([], [], "o", color="C1", mec="black", label=text)
        draw_legend(axes, below=True)


def first_minimum(g):
    """Return the row of the least g(r) between the highest peak and the next rise above 1; None if there is none."""
    peak = int(np.argmax(g))
    below = np.flatnonzero(g[peak:] < 1)
    above = np.flatnonzero(g[peak + below[0] :] > 1) if len(below) else []
    if not len(above):
        return None
    start = peak + below[0]
    return int(start + np.argmin(g[start : start + above[0]]))


def pair_column(pairs, expected, block_values, in_block, multiplicity):
    """Return a column of pair counts over those expected, with limits by blocks; pairs count `multiplicity` times."""
    value = pairs / expected

    def limits(level):
        band = uncertainty.of_blocks(block_values, in_block, level)
        low, high = value - (band.value - band.low), value + (band.high - band.value)
        # Blocks are unreliable for few pairs.
        count_limits = uncertainty.count(pairs // multiplicity, level)
        rare = pairs < FEW * multiplicity
        low = np.where(rare, np.minimum(low, count_limits.low * multiplicity / expected), low)
        high = np.where(rare, np.maximum(high, count_limits.high * multiplicity / expected), high)
        return replace(band, value=value, low=low, high=high)

    return himach.Column(value, estimate=limits)
