"""
ProLIF: interactions of a ligand
================================

A fingerprint of `ProLIF <https://prolif.readthedocs.io>`__ is made frame by frame: ``map()`` makes that of its
frame, and ``finish()`` gives all of them to ProLIF, which makes tables and plots of them as of its own.
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
import prolif
from prolif.datafiles import TOP, TRAJ

import himach


class Fingerprints(himach.Analysis):
    """Interactions of a ligand with a protein."""

    ligand: str = "resname LIG"
    protein: str = "protein"

    def setup(self, universe):
        self.groups = [universe.select_atoms(text) for text in (self.ligand, self.protein)]

    def map(self, frame):
        found = prolif.Fingerprint().run(frame.universe.trajectory.ts, *self.groups, n_jobs=1, progress=False)
        yield "fingerprint", found.ifp[frame.number]

    def reduce(self, key, series):
        return dict(zip(series.frames.tolist(), series.values, strict=True))

    def finish(self, results):
        fingerprint = prolif.Fingerprint()
        fingerprint.ifp = results["fingerprint"]
        return fingerprint.to_dataframe()


if __name__ == "__main__":
    # The times in ProLIF's sample run backwards, so that frames get times of their own by ``dt``.
    found = himach.run(Fingerprints(), TRAJ, TOP, step=25, universe={"dt": 1.0}, ranks=2, progress=False).outcome

    universe = mda.Universe(TOP, TRAJ)
    groups = universe.select_atoms("resname LIG"), universe.select_atoms("protein")
    alone = prolif.Fingerprint().run(universe.trajectory[::25], *groups, n_jobs=1, progress=False)
    assert found.equals(alone.to_dataframe())

    # %%
    # How often each interaction is there. ``himach bench others`` times it beside ProLIF's own processes.

    often = found.mean().sort_values()[-15:]
    names = [f"{residue} {interaction}" for _, residue, interaction in often.index]
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    axes.barh(names, often)
    axes.set(xlabel="part of the frames", xlim=(0, 1))
