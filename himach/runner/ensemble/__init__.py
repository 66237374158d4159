"""Ensembles of simulations: ranks share the members, each a run of its own; outcomes are joined and compared."""
