"""
How lipids' tails are ordered
=============================

Order parameters of the bonds between carbons and hydrogens in a small bilayer of DLPC and DLPE.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

result = himach.run(load("lipid-order")(), *sample("membrane"), progress=False)

# %%
# Near the glycerol tails stand rather upright. At their ends all directions are alike: the order parameter is near 0.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)

# %%
# Each bond has a row.

print(result["order"])
