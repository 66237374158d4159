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

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(counts["time_ps"], counts["bonds"], linewidth=0.8)
left.set(xlabel=counts.label("time_ps", "time"), ylabel="hydrogen bonds", ylim=(0, None))
result.plot(right)
