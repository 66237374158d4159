"""
How argon atoms forget their velocities
=======================================

The velocity autocorrelation of liquid argon, as Rahman simulated it in 1964: atoms rebound from their neighbours after
0.3 ps.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Autocorrelation = load("velocity-autocorrelation")
result = himach.run(Autocorrelation(selection="all", tau_max=55), *sample("argon"), progress=False)

# %%
# Rahman found a diffusion coefficient of 2.43e-5 cm²/s.

print(result["diffusion"])

# %%

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
