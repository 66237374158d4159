"""
How much is native
==================

Fraction of native contacts of villin, over 250 frames of 0.4 ps: those of the first frame.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

NativeContacts = load("native-contacts")
result = himach.run(NativeContacts(), *sample("villin"), progress=False)
print(result)

# %%
# The analysis draws its own plot, here on axes of ours.

figure, axes = plt.subplots(layout="constrained")
result.plot(axes)
