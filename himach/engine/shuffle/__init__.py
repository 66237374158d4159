"""Blocks on their way: kept until the shuffle, in memory and on disk; then from rank to rank, wave by wave."""
