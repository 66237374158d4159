"""Making frame directories: a trajectory split into numbered files, copied byte by byte."""
