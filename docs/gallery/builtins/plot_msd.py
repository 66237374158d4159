"""
How water diffuses
==================

The mean squared displacement of SPC/E water, of molecules by their centres of mass, along paths that are followed
through the periodic boundary.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

msd = load("msd")(selection="all", molecules=True, tau_max=11, viscosity=0.73, temperature=300)
result = himach.run(msd, *sample("water"), progress=False)

# %%
# Its slope at long times is six times the diffusion coefficient. Interval and band are by blocks of windows. In a box
# of 18.6 Å, images of the molecules slow each other down; what is beside it is the coefficient without them.

for column, cells in result["diffusion"].items():
    print(f"{column:24} {cells[0]:.4g}")

# %%

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
