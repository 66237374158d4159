"""Topologies, parsed once and kept: what a Universe is built from on every rank."""
