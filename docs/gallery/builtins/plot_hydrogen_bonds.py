"""
Hydrogen bonds of a protein
===========================

How many there are in villin at each time, and how long they last.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

result = himach.run(load("hydrogen-bonds")(), *sample("villin"), progress=False)
counts = result["counts"]
print(f"{counts['bonds'].mean():.1f} bonds on average, from {counts['bonds'].min()} to {counts['bonds'].max()}")

# %%

figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
result.plot(axes)
