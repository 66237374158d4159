"""Geometry of one frame at the speed of the machine, for any map(): who is near whom, how far a structure has moved.

Positions are float32 in Å, boxes as in ``frame.box``. Answers equal MDAnalysis's, to the last bit wherever something is
decided or counted. Nothing here imports MDAnalysis.
"""

from himach.kernels.molecules import centers, rmsd, unwrap, wrap
from himach.kernels.search import histogram, neighbors, within

__all__ = ["centers", "histogram", "neighbors", "rmsd", "unwrap", "within", "wrap"]
