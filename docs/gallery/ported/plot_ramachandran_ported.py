"""
Ramachandran, ported
====================

Four lists of atoms are prepared once; each frame gives an array of two angles for every residue.
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysis.lib.distances import calc_dihedrals

import himach
from himach.examples import sample

trajectory, topology = sample("villin")
theirs = Ramachandran(mda.Universe(topology, trajectory).select_atoms("protein").residues[1:-1]).run().results.angles


class Angles(himach.Analysis):
    """Phi and psi of each residue."""

    def setup(self, universe):
        inner = universe.select_atoms("protein").residues[1:-1]
        fours = ([residue.phi_selection() for residue in inner], [residue.psi_selection() for residue in inner])
        self.phi, self.psi = ([sum(atoms) for atoms in zip(*four, strict=True)] for four in fours)

    def map(self, frame):
        both = [calc_dihedrals(*(atoms.positions for atoms in four), box=frame.box) for four in (self.phi, self.psi)]
        yield "angles", np.rad2deg(np.column_stack(both))

    def reduce(self, key, series):
        return np.array(series.values)

    def finish(self, results):
        return {"angles": results["angles"]}


ours = himach.run(Angles(), trajectory, topology, progress=False)["angles"]
assert np.allclose(ours, theirs, atol=1e-3)

# %%

figure, axes = plt.subplots(figsize=(6, 6))
axes.hist2d(ours[..., 0].ravel(), ours[..., 1].ravel(), bins=90, range=[(-180, 180)] * 2, cmap="Blues", cmin=1)
axes.set(xlabel="φ / degrees", ylabel="ψ / degrees", title="All residues of villin, in all frames")
