"""A Universe of MDAnalysis that a run is given: its files or its memory, its topology, its transformations."""
