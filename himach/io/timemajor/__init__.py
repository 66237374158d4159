"""A dataset's time-major form: chunks of frames by blocks of atoms, for runs that ask for few atoms of many frames."""
