"""Slices pushed by ranks, found, assembled; and killed while that goes on."""
