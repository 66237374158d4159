"""What is computed for molecules: deviations, superposition, shape, centres; wrapping and unwrapping."""

from himach.kernels.molecules.molecules import (
    centers,
    deviation_sums,
    gyration,
    move,
    rmsd,
    rmsd_matrix,
    superposition,
    unwrap,
    wrap,
)

__all__ = ["centers", "deviation_sums", "gyration", "move", "rmsd", "rmsd_matrix", "superposition", "unwrap", "wrap"]
