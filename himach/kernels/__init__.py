"""Geometry of one frame at the speed of the machine, for any map(): who is near whom, how far a structure has moved.

Positions are float32 in Å, boxes as in ``frame.box``. Answers equal MDAnalysis's, to the last bit wherever something is
decided or counted. Nothing here imports MDAnalysis.
"""

from himach.kernels.kernels import (
    centers,
    contacts,
    deviation_sums,
    dihedrals,
    dssp,
    gyration,
    histogram,
    move,
    neighbors,
    order_parameters,
    rmsd,
    rmsd_matrix,
    sasa,
    superposition,
    unwrap,
    within,
    wrap,
)

__all__ = [
    "centers", "contacts", "deviation_sums", "dihedrals", "dssp", "gyration", "histogram", "move", "neighbors",
    "order_parameters", "rmsd", "rmsd_matrix", "sasa", "superposition", "unwrap", "within", "wrap",
]  # fmt: skip
