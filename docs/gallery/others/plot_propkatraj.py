"""
propkatraj: pKa of residues
===========================

`propkatraj <https://becksteinlab.github.io/propkatraj>`__ derives from MDAnalysis's AnalysisBase, and says nothing of
whether its frames depend on each other: each rank tries that with its first two frames. On the command line::

    himach run propkatraj:PropkaTraj -p atomgroup=protein -t adk.dcd --topology adk.psf -n 8 --out pka
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
from MDAnalysisTests.datafiles import DCD, PSF
from propkatraj import PropkaTraj

import himach
import himach.mdanalysis

if __name__ == "__main__":
    analysis = himach.mdanalysis.adapted(PropkaTraj)(atomgroup="protein")
    found = himach.run(analysis, DCD, PSF, step=16, ranks=2, progress=False).outcome["pkas"]

    alone = PropkaTraj(mda.Universe(PSF, DCD).select_atoms("protein")).run(step=16).results.pkas
    assert found.equals(alone)

    # %%
    # The residues of adenylate kinase whose pKa changes most while it opens.

    changing = found.columns[found.std().argsort()][-6:]
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for residue in changing:
        axes.plot(found.index, found[residue], marker=".", label=f"residue {residue}")
    axes.set(xlabel="time / ps", ylabel="pKa")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
