"""Runs from the call to the outcome: the public run(), its job, and the work of one rank."""
