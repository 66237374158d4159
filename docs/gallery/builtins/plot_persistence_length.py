"""
How stiff a chain is
====================

The end-to-end distance of villin, and the correlation of the directions of its bonds between alpha carbons, which are
those of helices: such a chain is no worm.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

result = himach.run(load("persistence-length")(longest=10), *sample("villin"), progress=False)
print(result["persistence"])

# %%

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
