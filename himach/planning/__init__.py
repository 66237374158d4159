"""Predicted cost of a run on other nodes, by closed forms fitted to records of runs."""
