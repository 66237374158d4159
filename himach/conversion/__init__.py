"""Trajectories written anew by all ranks, whole, centred, fitted: `convert()`, and the formats that are written."""
