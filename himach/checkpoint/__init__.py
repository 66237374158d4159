"""Pairs kept in a directory between runs: the output of map() for a frame is a plain value that never changes."""
