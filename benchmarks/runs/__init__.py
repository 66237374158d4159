"""Whole runs of himach: beside the tools that do the same, and as frames, atoms, keys and ranks grow."""
