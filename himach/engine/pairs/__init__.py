"""Pairs as columns: from what map() yields to blocks by shard, and the stamps of their frames."""
