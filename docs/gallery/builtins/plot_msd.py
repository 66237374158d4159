"""
How water diffuses
==================

The mean squared displacement of water in a nanopore, along paths that are followed through the periodic boundary.
"""

import himach
from himach.examples import load, sample

result = himach.run(load("msd")(tau_max=17, fit="1.5-3.4"), *sample("nanopore"), progress=False)

# %%
# Its slope at long times is six times the diffusion coefficient. Interval and band are by blocks of windows.

print(result["diffusion"])

# %%

result.plot()
