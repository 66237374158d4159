"""A trajectory, opened by all ranks or one process: its cached frames, its origin, and whether both still agree."""
