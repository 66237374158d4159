"""Whole frames out of slices: found, sent to one node each, put together, written."""
