"""
Dihedrals and distances of a protein
====================================

Where the backbone of villin is in the Ramachandran plane, and how far its ends are apart.
"""

import matplotlib.pyplot as plt
import numpy as np

import himach
from himach.examples import load, sample

Geometry = load("geometry")
analysis = Geometry(distances=["ends=name CA and resid 1 35"], dihedrals=["phi:resid 2:34", "psi:resid 2:34"])
result = himach.run(analysis, *sample("villin"), progress=False)
table = result["geometry"]
print(f"ends: {table['ends'].min():.1f} to {table['ends'].max():.1f} Å apart")

# %%
# A point for each residue and frame.

phi, psi = (np.concatenate([table[name] for name in table if name.startswith(word)]) for word in ("phi", "psi"))
figure, axes = plt.subplots(figsize=(5, 5), layout="constrained")
axes.plot(phi, psi, ",")
axes.set(xlabel="phi / °", ylabel="psi / °", xlim=(-180, 180), ylim=(-180, 180), aspect="equal")
axes.set_title("Backbone of villin")

# %%
# The analysis draws columns against time itself: many as a picture.

figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
result.plot(axes)
