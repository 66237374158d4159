"""A trajectory on a node: its cached frames, its origin, and whether both still have the same content."""
