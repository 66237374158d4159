"""The stamps of frames: step, time and box, which pairs know by a row of their rank's table."""
