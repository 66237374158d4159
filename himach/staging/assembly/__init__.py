"""Assembling whole frames from slices: find, send to one node each, assemble, write."""
