"""Frames as the bytes of a trajectory file, any of which can be computed without the ones before."""
