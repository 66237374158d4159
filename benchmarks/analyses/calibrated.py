"""Analyses whose cost is set, not found: they sleep, so that they cost the same however many share the cores."""

import time

import numpy as np

import himach


class Calibrated(himach.Analysis):
    """Take so many seconds a frame in map(), so many a pair in reduce(), and emit pairs of so many numbers."""

    seconds: float = 0.01
    uneven: float = 0.0
    pairs: int = 20
    width: int = 1
    reduce_seconds: float = 0.0
    keys: int = 320

    def setup(self, universe):
        """Make what is emitted, and the cost of every frame."""
        self.values = np.ones((self.pairs, self.width))
        self.costs = self.seconds * (1 + self.uneven * np.random.default_rng(2026).uniform(-1, 1, 1 << 16))

    def map(self, frame):
        """Sleep, and yield keys in turn, so that each comes as often as the others."""
        time.sleep(self.costs[frame.number % len(self.costs)])
        yield himach.Pairs((frame.step * self.pairs + np.arange(self.pairs)) % self.keys, self.values)

    def reduce(self, key, series):
        """Sleep, and count."""
        if self.reduce_seconds:
            time.sleep(self.reduce_seconds * len(series))
        return len(series)


class LightMap(Calibrated):
    """A light map() and a heavy shuffle."""

    seconds: float = 0.004
    pairs: int = 8
    width: int = 250


class HeavyMap(Calibrated):
    """A heavy and uneven map(), and next to nothing else."""

    seconds: float = 0.02
    uneven: float = 0.3


class HeavyReduce(Calibrated):
    """A light map() and a heavy reduce()."""

    seconds: float = 0.002
    reduce_seconds: float = 0.0008
