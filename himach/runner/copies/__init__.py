"""Copies of frames on several nodes: where they go, making them, and staging what other machines hold."""
