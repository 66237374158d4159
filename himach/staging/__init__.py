"""Bringing frames to nodes before a run: staging, copying, placing, assembling from slices."""
