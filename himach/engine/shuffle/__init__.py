"""Blocks until and during the shuffle: held in memory and on disk, then moved from rank to rank in waves."""
