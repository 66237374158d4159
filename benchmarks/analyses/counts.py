"""Frames counted by a key of their number: what frames cost that have next to nothing in them."""

import time

import numpy as np

import himach

#: When this process's first map() began.
begun: list[float] = []

_ONE = np.ones(1, dtype=np.int64)


class Counts(himach.Analysis):
    """Count the frames of each of `keys` keys, the remainders of their numbers."""

    keys: int = 1000
    caches = ("begun",)

    def map(self, frame):
        """Yield one for the frame's key."""
        if not begun:
            begun.append(time.time())
        yield himach.Pairs(np.array([frame.number % self.keys]), _ONE)

    def combine(self, key, series):
        """Add up."""
        return int(np.sum(series.values))

    def reduce(self, key, series):
        """Return the number of the key's frames."""
        return int(np.sum(series.values))

    def finish(self, results):
        """Return how many keys there were, and how many frames."""
        return {"found": {"keys": [len(results)], "frames": [sum(results.values())]}}
