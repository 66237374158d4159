"""Interactions and their lifetimes: water, ions, hydrogen bonds, contacts."""
