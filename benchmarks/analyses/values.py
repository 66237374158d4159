"""Many pairs with values at almost no cost: what shuffling, reducing and keeping them costs."""

import numpy as np

import himach


class Values(himach.Analysis):
    """Emit `pairs` a frame, made before the first, of `keys` random keys with a float32 value each; add them up."""

    keys: int = 100_000
    pairs: int = 1_000_000

    def setup(self, universe):
        """Make the pairs."""
        random = np.random.default_rng(2026)
        self.columns = random.integers(0, self.keys, self.pairs), random.random(self.pairs, dtype=np.float32)

    def atoms(self, universe):
        """Need a single atom."""
        return universe.atoms[:1]

    def map(self, frame):
        """Yield them, the same at every frame."""
        yield himach.Pairs(*self.columns)

    def reduce(self, key, series):
        """Return the sum of the key's values."""
        return float(np.add.reduce(series.values))

    def finish(self, results):
        """Return how many keys there were, and the sum of all."""
        return {"found": {"keys": [len(results)], "sum": [sum(results.values())]}}
