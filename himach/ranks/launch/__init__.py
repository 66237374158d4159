"""Start of ranks, by a launcher or by fork, also ahead of a run, and requests from outside to stop."""
