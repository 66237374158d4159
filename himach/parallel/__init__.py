"""Ranks: their communication, collective steps, failures and common progress display."""
