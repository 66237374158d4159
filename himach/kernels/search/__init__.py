"""Searches by distance: `within()`, `neighbors()` and `histogram()`."""

from himach.kernels.search.search import histogram, neighbors, within

__all__ = ["histogram", "neighbors", "within"]
