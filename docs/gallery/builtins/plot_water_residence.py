"""
How long water stays near an ion
================================

The survival probability of water in the first shell of potassium. A water that leaves the shell for a moment is gone,
unless one allows for it: ``intermittency`` is how many frames it may be away.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Residence = load("water-residence")
allowed = (0, 2, 5)
analyses = [Residence(solute="name K", intermittency=frames) for frames in allowed]
results = himach.run(analyses, *sample("nanopore"), progress=False)

# %%

figure, axes = plt.subplots()
for outcome, frames in zip(results.outcome.values(), allowed, strict=True):
    table = outcome["survival"]
    axes.plot(table["tau_ps"], table["survival"], marker=".", label=f"away for at most {frames} frames")
axes.set(xlabel=table.label("tau_ps", "lag"), ylabel="survival probability", ylim=(0, 1.05))
axes.legend()
