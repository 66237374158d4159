"""
Which residues the solvent reaches
==================================

The accessible surface of villin, over 250 frames of 0.4 ps, and that of each of its residues.
"""

import matplotlib.pyplot as plt
import numpy as np

import himach
from himach.examples import load, sample

Sasa = load("sasa")
result = himach.run(Sasa(by="residue"), *sample("villin"), progress=False)
print(result["radii"])

# %%
# The core of the protein is what has least: phenylalanines, alanines, leucines.

table = result["by"]
print([table["residue"][i] for i in np.argsort(table["sasa"])[:6]])

# %%

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
