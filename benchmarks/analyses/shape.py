"""RMSD and radius of gyration of all atoms in one row a frame, for members of an ensemble."""

from __future__ import annotations

import numpy as np

import himach
from himach.kernels import rmsd


class Shape(himach.Analysis):
    """Deviation from the first frame after the best fit, and radius of gyration, of all atoms."""

    def setup(self, universe):
        """Remember masses and the first frame."""
        self.masses = universe.atoms.masses / universe.atoms.masses.sum()
        self.reference = universe.atoms.positions.copy()

    def map(self, frame):
        """Yield a row."""
        positions = frame.positions.astype(np.float64)
        deviations = positions - self.masses @ positions
        gyration = float(np.sqrt(self.masses @ (deviations * deviations).sum(axis=1)))
        yield himach.Row(rmsd=rmsd(frame.positions, self.reference), rg=gyration)
