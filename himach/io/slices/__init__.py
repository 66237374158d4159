"""Slices that the processes of a simulation have pushed: what a node's store has of frames that are not whole yet."""
