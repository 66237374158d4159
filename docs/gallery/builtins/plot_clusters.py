"""
Which frames are alike
======================

The backbone of villin, over 250 frames: clusters of frames that differ by 0.9 Å at most from the one in the middle.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Clusters = load("clusters")
result = himach.run(Clusters(cutoff=0.9), *sample("villin"), progress=False)
print(result)

# %%
# How much of the time is spent in each cluster.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)

# %%
# The structure in the middle of the first cluster is a PDB file, of which a run with ``out=`` leaves ``center_1.pdb``.

print("\n".join(result["center_1"].text.splitlines()[:8]))
