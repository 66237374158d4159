"""
How water diffuses
==================

The mean squared displacement of water in a nanopore, along paths that are followed through the periodic boundary.
"""

import matplotlib.pyplot as plt
import numpy as np

import himach
from himach.examples import load, sample

result = himach.run(load("msd")(tau_max=60), *sample("nanopore"), progress=False)
table = result["msd"]

# %%
# Its slope at long times is six times the diffusion coefficient.

late = table["tau_ps"] > 4
slope, offset = np.polyfit(table["tau_ps"][late], table["msd"][late], 1)
print(f"D = {slope / 6:.2f} Å²/ps = {slope / 6 * 10:.1f} · 10⁻⁵ cm²/s")

# %%

figure, axes = plt.subplots()
result.plot(axes)
axes.plot(table["tau_ps"], slope * table["tau_ps"] + offset, "--", label=f"6 · {slope / 6:.2f} Å²/ps")
axes.legend()
