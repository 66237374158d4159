"""How ranks begin: started or forked, ready ahead of a run, and asked to end by the world outside."""
