"""
How water is oriented
=====================

The mean cosine of the angle between the dipole moments of water and z, in layers of a box of SPC/E water: without an
interface there is no preferred direction.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

charges = ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]
result = himach.run(load("dipole-orientation")(charges=charges, bins=10), *sample("water"), progress=False)
print(result["orientation"])

# %%

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
