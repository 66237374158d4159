"""What a run would take on other nodes: closed forms where nothing is shared, events where something is."""
