"""Searches by distance: `within()`, `neighbors()` and `histogram()`."""

from himach.kernels.search.search import contacts, histogram, neighbors, within

__all__ = ["contacts", "histogram", "neighbors", "within"]
