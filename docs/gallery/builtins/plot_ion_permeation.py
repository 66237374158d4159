"""
Ions through a channel
======================

Two potassium ions and the selectivity filter of a potassium channel, over one microsecond.
"""

import matplotlib.pyplot as plt

import himach
from himach.examples import load, sample

Permeation = load("ion-permeation")
analysis = Permeation(top="resid 66 and name O", bottom="resid 63 and name OG1", radius=2.5)
result = himach.run(analysis, *sample("kcsa"), progress=False)
print(result)

# %%
# Seven passages, four of them up.

figure, axes = plt.subplots(layout="constrained", figsize=(8, 4))
result.plot(axes)
