"""Ranks: their communication, collective steps, failures and progress display; below, their start here and in jobs."""
