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
# The first shell of potassium is nearer than that of chloride.

figure, axes = plt.subplots()
for name, ion in zip(results, ions, strict=True):
    table = results[name]
    axes.plot(table["r"], table["g"], label=f"{ion}, first peak at {table['r'][table['g'].argmax()]:.2f} Å")
axes.axhline(1, color="grey", linewidth=0.5)
axes.set(xlabel=table.label("r", "distance"), ylabel="g")
axes.legend()
