"""
How water screens charges
=========================

The static dielectric constant of 216 molecules of SPC/E water over a nanosecond. The topology is a PDB file without
charges: the analysis takes them by selection.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

charges = ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]
result = himach.run(load("dielectric")(charges=charges), *sample("water"), progress=False)

# %%
# A nanosecond is short for it: the interval tells.

print(result["dielectric"])

# %%

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
