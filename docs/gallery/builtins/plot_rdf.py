"""
Water around ions
=================

The radial distribution of water oxygens around potassium in a nanopore, beside that around chloride, in one pass.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Rdf = load("rdf")
ions = {"potassium": "name K", "chloride": "name CL CLA Cl"}
analyses = [Rdf(a=selection, b="name O", r_max=8.0) for selection in ions.values()]
results = himach.run(analyses, *sample("nanopore"), stop=60, progress=False)

# %%
# The first shell of potassium is nearer than that of chloride, and holds fewer waters.

figure, axes = plt.subplots()
for name, ion in zip(results.outcome, ions, strict=True):
    table, within = results[f"{name}/rdf"], results[f"{name}/coordination"]
    peak = table["g"].argmax()
    shell = peak + table["g"][peak:50].argmin()  # the least after the peak, within 4 Å
    label = f"{ion}: first peak at {table['r'][peak]:.2f} Å, {within['n'][shell]:.1f} within {within['r'][shell]:.2f} Å"
    axes.plot(table["r"], table["g"], label=label)
axes.axhline(1, color="grey", linewidth=0.5)
axes.set(xlabel=table.label("r", "distance"), ylabel="g")
axes.legend()
