"""Ranks that stay between runs, and are to each run as new ones would be."""
