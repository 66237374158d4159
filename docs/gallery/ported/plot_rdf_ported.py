"""
InterRDF, ported
================

Each frame gives a histogram and the volume of its box. Keys are what is told apart; ``reduce()`` gets all values of
one, and ``finish()`` what it made of each.
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rdf import InterRDF

import himach
from himach.examples import sample

trajectory, topology = sample("nanopore")
universe = mda.Universe(topology, trajectory)
chosen = universe.select_atoms("name K"), universe.select_atoms("name O")
theirs = InterRDF(*chosen, nbins=80, range=(0, 8)).run(stop=60).results


class Counts(himach.Analysis):
    """Pairs by distance, and the mean density of what is around."""

    bins: int = 80
    r_max: float = 8.0

    def setup(self, universe):
        self.middle, self.around = universe.select_atoms("name K"), universe.select_atoms("name O")

    def map(self, frame):
        yield (
            "counts",
            himach.kernels.histogram(self.middle.positions, self.around.positions, self.r_max, self.bins, frame.box),
        )
        yield "volume", float(frame.universe.trajectory.ts.volume)

    def reduce(self, key, series):
        return np.sum(series.values, axis=0)

    def finish(self, results):
        edges = np.linspace(0, self.r_max, self.bins + 1)
        frames = len(self.frames)
        pairs = self.middle.n_atoms * self.around.n_atoms * frames / (results["volume"] / frames)
        shells = 4 / 3 * np.pi * np.diff(edges**3)
        return {"rdf": {"r": (edges[1:] + edges[:-1]) / 2, "g": results["counts"] / (pairs * shells)}}


ours = himach.run(Counts(), trajectory, topology, stop=60, progress=False)["rdf"]
assert np.allclose(ours["g"], theirs.rdf, rtol=1e-6)

# %%

figure, axes = plt.subplots()
axes.plot(theirs.bins, theirs.rdf, linewidth=4, alpha=0.3, label="MDAnalysis")
axes.plot(ours["r"], ours["g"], linewidth=1, label="himach")
axes.set(xlabel="distance from potassium / Å", ylabel="g")
axes.legend()
