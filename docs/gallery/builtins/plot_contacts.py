"""
Contacts of residues
====================

Which residues of villin touch, how often, and how long a contact lasts that forms while it is watched.
"""

import matplotlib.pyplot as plt
import numpy as np

import himach
from himach.examples import load, sample

result = himach.run(load("contacts")(), *sample("villin"), progress=False)
frequency, lifetimes = result["frequency"], result["lifetimes"]
for row in np.argsort(-lifetimes["stays"])[:5]:
    pair = f"{lifetimes['a'][row]} and {lifetimes['b'][row]}"
    part, mean = frequency["frequency"][row], lifetimes["mean_ps"][row]
    print(f"{pair}: {100 * part:.0f} % of the frames, {lifetimes['stays'][row]} contacts of {mean:.1f} ps")

# %%

figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
result.plot(axes)
