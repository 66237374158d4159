"""How atoms are arranged around others."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar

import numpy as np
from MDAnalysis.lib.distances import capped_distance
from MDAnalysis.lib.mdamath import box_volume

import himach
from himach.examples.common import WATER, check_positive, select


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
        Largest distance in Å; no more than half the box makes sense.
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

    def map(self, frame):
        pairs, distances = capped_distance(
            frame.positions[self.a_atoms], frame.positions[self.b_atoms], self.r_max, box=frame.box
        )
        if self.n_common:
            distances = distances[self.a_atoms[pairs[:, 0]] != self.b_atoms[pairs[:, 1]]]
        yield "pairs", np.histogram(distances, self.bins, (0, self.r_max))[0]
        # A sum of fractions is exact, so that it does not depend on who added up which frames.
        yield "volume", Fraction(float(box_volume(frame.box)))

    def combine(self, key, series):
        return sum(series.values)

    def reduce(self, key, series):
        return sum(series.values)

    def finish(self, results):
        n_frames = len(self.frames)
        edges = np.linspace(0, self.r_max, self.bins + 1)
        shells = 4 / 3 * np.pi * np.diff(edges**3)
        density = (len(self.a_atoms) * len(self.b_atoms) - self.n_common) / float(results["volume"] / n_frames)
        return {"rdf": {"r": (edges[:-1] + edges[1:]) / 2, "g": results["pairs"] / (n_frames * density * shells)}}

    def plot(self, outcome, axes):
        table = outcome["rdf"]
        axes.plot(table["r"], table["g"])
        axes.axhline(1, color="grey", linewidth=0.8, linestyle="--")
        axes.set(xlabel="distance r / Å", ylabel="g(r)", title="Radial distribution function", xlim=(0, self.r_max))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
