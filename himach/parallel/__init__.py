"""Ranks: how they are started, how they talk, meet, fail and show their progress together."""
