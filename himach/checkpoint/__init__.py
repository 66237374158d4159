"""Pairs kept in a directory, from run to run: what map() gave for a frame is a plain value that never changes."""
