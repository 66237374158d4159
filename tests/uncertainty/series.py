"""Series whose mean and memory are known, and slow twins of what is computed fast."""

import math

import numpy as np


def first_order(random, phi, n, series=None):
    """Return x' = phi x + noise, of mean 0 and variance 1: float64 (n,), or (series, n)."""
    noise = random.normal(size=(series or 1, n)) * math.sqrt(1 - phi**2)
    noise[:, 0] /= math.sqrt(1 - phi**2)
    for i in range(1, n):
        noise[:, i] += phi * noise[:, i - 1]
    return noise if series else noise[0]


def geyer(covariances):
    """Geyer's initial monotone sequence, lag by lag."""
    total, before = 0.0, math.inf
    for m in range(len(covariances) // 2):
        pair = covariances[2 * m] + covariances[2 * m + 1]
        if pair <= 0:
            break
        before = min(before, pair)
        total += before
    return max(1.0, 2 * total / covariances[0] - 1)


def inefficiency(values):
    n, mean = len(values), math.fsum(values) / len(values)
    deviations = [value - mean for value in values]
    lags = [math.fsum(deviations[i] * deviations[i + lag] for i in range(n - lag)) / n for lag in range(n)]
    return geyer(lags) if lags[0] else 1.0


def curve_inefficiency(sums, weights):
    """The same of all bins of blocks: bin by bin, lag by lag."""
    n, bins = sums.shape
    pooled = np.zeros(n)
    for b in range(bins):
        ratio = sums[:, b].sum() / weights[:, b].sum()
        deviations = sums[:, b] - ratio * weights[:, b]
        variance = (deviations**2).sum()
        if variance > 0:
            pooled += [sum(deviations[i] * deviations[i + lag] for i in range(n - lag)) / variance for lag in range(n)]
    return geyer(pooled)
