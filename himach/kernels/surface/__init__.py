"""Surfaces of molecules: what of each atom's sphere a probe can reach.

From below: `spiral` has the points of a sphere, `caps` a table of which of them lie in a cap, and `sasa` counts the
points that no neighbour buries.
"""

from himach.kernels.surface.surface import sasa

__all__ = ["sasa"]
