"""
Which way a protein moves most
==============================

Principal components of the C-alpha atoms of villin, over 250 frames of 0.4 ps.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Pca = load("pca")
result = himach.run(Pca(components=4, bins=12), *sample("villin"), progress=False)
print(result)

# %%
# The analysis draws the free energy along the first two components.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)

# %%
# In time, the first component goes along half a cosine: 100 ps tell little of it.

figure, axes = plt.subplots(layout="constrained")
table = result["projections"]
for name in ("pc1", "pc2"):
    axes.plot(table["time_ps"], table[name], label=name)
axes.set(xlabel=table.label("time_ps", "time"), ylabel=table.label("pc1", "projection"))
axes.legend()

# %%
# Which residues move together, and which move against each other.

figure, axes = plt.subplots(layout="constrained")
image = axes.imshow(result["cross_correlation"], vmin=-1, vmax=1, cmap="RdBu_r", origin="lower")
figure.colorbar(image, label="cross-correlation")
axes.set(xlabel="residue", ylabel="residue")
