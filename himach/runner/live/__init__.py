"""Runs over arriving frames: of an engine, of a dataset that is being pushed, or of a file that grows."""
