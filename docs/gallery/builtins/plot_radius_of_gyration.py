"""
How large a protein is
======================

Radius of gyration and shape anisotropy of villin, over 250 frames of 0.4 ps.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

RadiusOfGyration = load("radius-of-gyration")
result = himach.run(RadiusOfGyration(), *sample("villin"), progress=False)
print(result)

# %%
# The analysis draws its own plot, here on axes of ours.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
