"""
RMSD, ported
============

``MDAnalysis.analysis.rms.RMSD`` as an analysis of himach: what is prepared once is ``setup()``, what is done for a
frame is ``map()``, and ``reduce()`` gets what all frames gave, in the order of time.
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rms import RMSD, rmsd

import himach
from himach.examples import sample

trajectory, topology = sample("villin")
theirs = RMSD(mda.Universe(topology, trajectory), select="backbone").run().results.rmsd


class Rmsd(himach.Analysis):
    """RMSD to the first frame, after superposition."""

    selection: str = "backbone"

    def setup(self, universe):
        self.atoms_of = universe.select_atoms(self.selection)
        self.reference = self.atoms_of.positions.astype(np.float64)

    def map(self, frame):
        yield "rmsd", rmsd(self.atoms_of.positions, self.reference, center=True, superposition=True)

    def reduce(self, key, series):
        return {"time": series.times, "rmsd": np.array(series.values)}

    def finish(self, results):
        found = results["rmsd"]
        return himach.Table({"time": himach.Column(found["time"], "ps"), "rmsd": himach.Column(found["rmsd"], "Å")})


result = himach.run(Rmsd(), trajectory, topology, progress=False)
ours = result["Rmsd"]
assert np.allclose(ours["rmsd"], theirs[:, 2], atol=1e-4)
print(f"largest difference: {np.abs(ours['rmsd'] - theirs[:, 2]).max():.0e} Å")

# %%

figure, axes = plt.subplots()
axes.plot(theirs[:, 1], theirs[:, 2], linewidth=4, alpha=0.3, label="MDAnalysis")
axes.plot(ours["time"], ours["rmsd"], linewidth=1, label="himach")
axes.set(xlabel=ours.label("time"), ylabel=ours.label("rmsd", "RMSD"))
axes.legend()
