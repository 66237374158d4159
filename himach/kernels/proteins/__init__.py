"""What the backbones of proteins form: `dssp()`, by bonds, bridges and turns."""

from himach.kernels.proteins.proteins import dssp

__all__ = ["dssp"]
