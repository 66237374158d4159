"""MapReduce over values: from what map() yields to what reduce() gets."""
