"""What a run would take on other nodes, by closed forms that are fitted to records of runs."""
