"""Conversion of trajectories by all ranks (whole, centred, fitted): `convert()`, and the output formats."""
