"""What Python values are, by digests that are the same in every process, for maps and topologies that are compared."""
