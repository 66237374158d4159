"""What a node knows of one trajectory: its cached frames, else its origin, and whether they are still the same."""
