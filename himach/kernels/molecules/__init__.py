"""What is computed for molecules: `rmsd()`; `centers()`, `wrap()` and `unwrap()` of groups of atoms."""

from himach.kernels.molecules.molecules import centers, rmsd, unwrap, wrap

__all__ = ["centers", "rmsd", "unwrap", "wrap"]
