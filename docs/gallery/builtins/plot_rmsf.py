"""
How far residues move about their mean
======================================

The residues of villin over 250 frames of 0.4 ps, superposed by the backbone.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Rmsf = load("rmsf")
heavy = "protein and not name H*"
result = himach.run(Rmsf(selection=heavy, fit="backbone", by="residue"), *sample("villin"), progress=False)
print(result)

# %%
# The analysis draws its own plot, here on axes of ours.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
