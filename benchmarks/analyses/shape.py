"""RMSD and radius of gyration of all atoms in one row a frame, for members of an ensemble."""

import math

import himach
from himach.kernels import gyration, rmsd


class Shape(himach.Analysis):
    """Deviation from the first frame after the best fit, and radius of gyration, of all atoms."""

    def setup(self, universe):
        """Remember masses and the first frame."""
        self.masses = universe.atoms.masses
        self.reference = universe.atoms.positions.copy()

    def map(self, frame):
        """Yield a row."""
        tensor = gyration(frame.positions, self.masses)
        yield himach.Row(rmsd=rmsd(frame.positions, self.reference), rg=math.sqrt(tensor.trace()))
