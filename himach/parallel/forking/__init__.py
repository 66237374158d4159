"""Ranks of this machine that are forked from one process, which has imported for all and serves as their launcher."""
