"""Making frame directories: a trajectory split into numbered files, copied or written as AMBER NetCDF."""
