"""Input of any command: a dataset opened by all ranks together, or by one process alone."""
