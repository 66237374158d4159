"""Runs over frames that still come: of an engine, of a dataset that is being pushed, of a file that grows."""
