"""Frames brought to nodes before a run: staged, copied, laid out, put together from slices."""
