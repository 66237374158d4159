"""
HydrogenBondAnalysis, ported
============================

A bond is a key: its donor, hydrogen and acceptor. ``himach.Pairs`` yields all bonds of a frame at once, and
``reduce()`` gets each bond's own series, so that what became of one needs no search through all.
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis
from MDAnalysis.lib.distances import calc_angles, capped_distance

import himach
from himach.examples import sample

trajectory, topology = sample("villin")
chosen = {"donors_sel": "name N", "hydrogens_sel": "name H", "acceptors_sel": "name O"}
theirs = HydrogenBondAnalysis(mda.Universe(topology, trajectory), **chosen).run(stop=100)


class Bonds(himach.Analysis):
    """In how many frames each bond is there, and when first."""

    key_names = ("donor", "hydrogen", "acceptor")

    def setup(self, universe):
        self.donors, self.hydrogens, self.acceptors = (universe.select_atoms(text) for text in chosen.values())
        near = capped_distance(
            self.donors.positions, self.hydrogens.positions, 1.2, box=universe.dimensions, return_distances=False
        )
        self.donors, self.hydrogens = self.donors[near[:, 0]], self.hydrogens[near[:, 1]]

    def map(self, frame):
        places = self.donors.positions, self.acceptors.positions
        found = capped_distance(*places, 3.0, 1.0, box=frame.box, return_distances=False)
        d, h, a = self.donors[found[:, 0]], self.hydrogens[found[:, 0]], self.acceptors[found[:, 1]]
        angles = np.rad2deg(calc_angles(d.positions, h.positions, a.positions, box=frame.box))
        yield himach.Pairs(np.column_stack([d.ix, h.ix, a.ix])[angles > 150])

    def reduce(self, key, series):
        return {"frames": len(series), "first": series.times[0]}


result = himach.run(Bonds(), trajectory, topology, stop=100, progress=False)
bonds = result["Bonds"]
assert sum(bonds["frames"]) == len(theirs.results.hbonds)

# %%
# The steadiest ones: those of the helices.

order = np.argsort(bonds["frames"])[::-1][:15]
universe = mda.Universe(topology, trajectory)
donors, acceptors = (universe.atoms[np.asarray(bonds[name])[order]] for name in ("donor", "acceptor"))
names = [
    f"{donor.resname} {donor.resid} to {acceptor.resname} {acceptor.resid}"
    for donor, acceptor in zip(donors, acceptors, strict=True)
]
figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
axes.barh(names[::-1], np.asarray(bonds["frames"])[order][::-1])
axes.set(xlabel="frames in which the bond is there, of 100")
