"""
Area and thickness of a membrane
================================

Area per lipid by Voronoi cells, and the distance of headgroups, in a small bilayer of DLPC and DLPE.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

result = himach.run(load("membrane")(), *sample("membrane"), progress=False)

# %%
# A larger area goes with a thinner membrane, as the volume of the tails stays.

figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
result.plot(axes)

# %%

print(result["area"])
