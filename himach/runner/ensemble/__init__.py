"""Many simulations at once: each a run of its own, shared among the ranks, their outcomes joined and compared."""
