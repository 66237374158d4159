"""A dataset in the layout that is asked for: its time-major form made, or dropped."""
