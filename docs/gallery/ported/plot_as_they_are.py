"""
MDAnalysis's analyses as they are
=================================

``import himach.mdanalysis`` is all that it takes: its analyses run on himach's ranks, over frames that are kept on the
node, and have the numbers that they have without it.
"""

import matplotlib.pyplot as plt
import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysis.analysis.dssp import DSSP

import himach.mdanalysis
from himach.examples import sample

trajectory, topology = sample("villin")
universe = mda.Universe(topology, trajectory)
protein = universe.select_atoms("protein")

# %%
# Two of them in one pass; ``ranks=8`` would start eight ranks of this machine.

angles, structure = Ramachandran(protein.residues[1:-1]), DSSP(protein)
himach.mdanalysis.run([angles, structure])

assert np.array_equal(angles.results.angles, Ramachandran(protein.residues[1:-1]).run().results.angles)
assert np.array_equal(structure.results.dssp, DSSP(protein).run().results.dssp)

# %%
# What they found, drawn as MDAnalysis draws it.

figure, axes = plt.subplots(figsize=(6, 6))
angles.plot(ax=axes, color="black", marker=".", s=1, ref=True)

# %%
# Villin has three helices: the part of frames in which each residue is in one.

helical = structure.results.dssp_ndarray[:, :, 1].mean(axis=0)
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.bar(structure.results.resids, helical)
axes.set(xlabel="residue", ylabel="frames in a helix", ylim=(0, 1))
