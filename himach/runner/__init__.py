"""A run from the call to its outcome: the public run(), what it is asked to do, and what one rank does."""
