"""A plan of the run that is asked for."""
