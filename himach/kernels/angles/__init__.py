"""Angles of bonds: dihedrals, and order along a direction."""

from himach.kernels.angles.angles import dihedrals, order_parameters

__all__ = ["dihedrals", "order_parameters"]
