"""
transport-analysis: velocities of a liquid
==========================================

``VelocityAutocorr`` of `transport-analysis <https://transport-analysis.readthedocs.io>`__ needs all frames at once, but
only when all have been read: ranks read them, and the first one concludes. On the command line::

    himach run transport_analysis.velocityautocorr:VelocityAutocorr -p atomgroup="name O" -t water.trr ...
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
import numpy as np
from MDAnalysisTests.datafiles import PRM_NCBOX, TRJ_NCBOX
from transport_analysis.velocityautocorr import VelocityAutocorr

import himach
import himach.mdanalysis

if __name__ == "__main__":
    water = "resname WAT and name O"
    analysis = himach.mdanalysis.adapted(VelocityAutocorr)(atomgroup=water)
    found = himach.run(analysis, TRJ_NCBOX, PRM_NCBOX, ranks=2, progress=False)

    alone = VelocityAutocorr(mda.Universe(PRM_NCBOX, TRJ_NCBOX).select_atoms(water)).run().results
    assert np.array_equal(found["timeseries"], alone.timeseries)
    assert np.array_equal(found["vacf_by_particle"], alone.vacf_by_particle)

    # %%
    # A picosecond lies between two frames of this sample, in which a molecule of water forgets its velocity.

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.plot(found["timeseries"], marker=".")
    axes.set(xlabel="lag time / ps", ylabel="autocorrelation / Å² ps⁻²")
