"""Topologies, parsed once and attached to the frames: what a Universe is built from on every rank."""
