"""
Water at a nanopore
===================

The mass density of water along a nanopore from its middle, and that of oxygens in space.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Density = load("density")
water = Density(selection="resname HOH", weights="mass", center="resname GRA")
in_space = Density(grid=1.0, axis="y")
result = himach.run([water, in_space], *sample("nanopore"), progress=False)

# %%
# Water lies in layers at the outer sheets. Its band is by blocks of frames.

table = result["profile"]
print(
    f"{table['density'].max():.2f} g/cm³ at {abs(table['position'][table['density'].argmax()]):.1f} Å from the middle"
)

# %%
# The grid is drawn as its mean along y. It is an array, and an OpenDX file for programs that show molecules.

print(result["grid"].shape, "voxels,", result["extent"]["from"].round(1), "to", result["extent"]["to"].round(1), "Å")

# %%

figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
result.plot(axes)
