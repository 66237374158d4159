"""Offsets and times of frames, for files of any format: in a few bytes per frame."""
