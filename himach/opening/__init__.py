"""What any command works on: a dataset opened by all ranks together, or by one process alone."""
