"""So many pairs a frame, of so many keys: what keys and pairs cost, with an analysis that does nothing else."""

import numpy as np

import himach


class Keys(himach.Analysis):
    """Emit `pairs` a frame, of `keys` random keys with a value each, and add up the values of each key."""

    keys: int = 10_000
    pairs: int = 1_000

    def map(self, frame):
        """Yield the frame's pairs, the same for any number of ranks."""
        random = np.random.default_rng(frame.number)
        yield himach.Pairs(random.integers(0, self.keys, self.pairs), random.random(self.pairs, dtype=np.float32))

    def reduce(self, key, series):
        """Return the sum of the key's values."""
        return float(np.add.reduce(series.values, dtype=np.float64))

    def finish(self, results):
        """Return how many keys there were, and the sum of all."""
        return {"found": {"keys": [len(results)], "sum": [sum(results.values())]}}
