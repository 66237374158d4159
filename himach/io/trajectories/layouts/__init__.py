"""Frames as the bytes of a trajectory file: any range can be computed without the bytes before it."""
