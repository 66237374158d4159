"""Trajectories: origins, frame directories, sources, and the Universe that an analysis sees."""
