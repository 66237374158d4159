"""The stamps of frames, which pairs know by a row alone: step, time and box, in the table of their rank."""
