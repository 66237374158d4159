"""A frame bound to an analysis's own Universe."""
