"""Outcomes in one file of the user's choice, and as pandas tables."""
