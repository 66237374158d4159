"""
Helices and turns of a protein
==============================

The secondary structure of villin by DSSP: three helices, and what they do in 100 ps.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

result = himach.run(load("secondary-structure")(), *sample("villin"), progress=False)
for frame in (0, -1):
    print(bytes(result["states"][frame]).decode())

# %%

figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
result.plot(axes)
