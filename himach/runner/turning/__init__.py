"""Which layouts a dataset is kept in: its time-major form made, or dropped."""
