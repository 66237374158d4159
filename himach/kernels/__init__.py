"""Geometry of one frame at the speed of the machine, for any map(): who is near whom, how far a structure has moved.

Positions are float32 in Å, boxes as in ``frame.box``. Answers equal MDAnalysis's, to the last bit wherever something is
decided or counted. Nothing here imports MDAnalysis.
"""

from himach.kernels.molecules import rmsd
from himach.kernels.search import histogram, neighbors, within

__all__ = ["histogram", "neighbors", "rmsd", "within"]
