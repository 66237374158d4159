"""
How much each two frames differ
===============================

Root-mean-square deviation of the backbone of villin between each two of 250 frames.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

PairwiseRmsd = load("pairwise-rmsd")
result = himach.run(PairwiseRmsd(), *sample("villin"), progress=False)
print(result)

# %%
# The analysis draws its own plot, here on axes of ours.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
