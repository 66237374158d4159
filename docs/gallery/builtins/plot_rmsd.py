"""
How far a protein moves from where it began
===========================================

The backbone of villin, over 250 frames of 0.4 ps, superposed on the first one.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Rmsd = load("rmsd")
result = himach.run(Rmsd(), *sample("villin"), progress=False)
print(result)

# %%
# The analysis draws its own plot, here on axes of ours.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)

# %%
# Several analyses share one pass over the frames: side chains move more than the backbone. Without a ``plot()`` of an
# analysis, its columns are at hand, with their units.

several = himach.run(
    [Rmsd(), Rmsd(selection="protein and not backbone and not name H*")], *sample("villin"), progress=False
)
figure, axes = plt.subplots(layout="constrained")
for name, label in zip(several, ("backbone", "side chains"), strict=True):
    table = several[name]
    axes.plot(table["time_ps"], table["rmsd"], label=label)
axes.set(xlabel=table.label("time_ps", "time"), ylabel=table.label("rmsd", "RMSD"))
axes.legend()
