"""Failures: how much longer a run takes because nodes fail, with and without kept pairs.

A rank that dies ends the run (docs/architecture.md), which is started again: from the beginning, or with kept pairs
from the last commit. Nodes fail independently of each other at a constant rate, so the machine does at their sum.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["drawn_with_pairs", "drawn_without", "lost_node_bound", "with_pairs", "without_pairs"]


def without_pairs(seconds: float, rate: float) -> float:
    """Return the expected time of a run of `seconds` that begins anew after each failure, `rate` of them a second.

    (exp(rate seconds) - 1) / rate: Daly, Future Gener. Comput. Syst. 22, 303 (2006), equation 13 with one segment.
    """
    exponent = rate * seconds
    if exponent > 700:
        return math.inf
    return math.expm1(exponent) / rate if rate > 0 else seconds


def with_pairs(startup: float, mapping: float, rest: float, every: float, rate: float) -> float:
    """Return the expected time of a run that goes on where the last commit was; there is one `every` so many seconds.

    Daly's equation 13: segments of `every` seconds, after each failure a start; what comes after map() is one segment.
    There is a commit at the end of map(), too.
    """
    if rate <= 0:
        return startup + mapping + rest
    every = min(every, mapping) or every
    segments = mapping / every
    restart = rate * startup
    last = rate * rest
    if max(restart + rate * every, restart + last) > 700:
        return math.inf
    map_time = math.exp(restart) * math.expm1(rate * every) / rate * segments
    rest_time = math.exp(restart) * math.expm1(last) / rate
    return without_pairs(startup, rate) + map_time + rest_time


def drawn_without(seconds: float, rate: float, rng: np.random.Generator, most: int = 10_000) -> float:
    """Return one draw of the time of a run that begins anew after each failure; infinite after `most` failures."""
    spent = 0.0
    for _ in range(most):
        failed = rng.exponential(1 / rate) if rate > 0 else math.inf
        if failed >= seconds:
            return spent + seconds
        spent += failed
    return math.inf


def drawn_with_pairs(
    startup: float, mapping: float, rest: float, every: float, rate: float, rng: np.random.Generator, most: int = 10_000
) -> float:
    """Return one draw of the time of a run that goes on where the last commit was."""
    spent, done = 0.0, 0.0
    every = min(every, mapping) or every
    for _ in range(most):
        left = startup + (mapping - done) + rest
        failed = rng.exponential(1 / rate) if rate > 0 else math.inf
        if failed >= left:
            return spent + left
        spent += failed
        done = min(mapping, done + max(0.0, failed - startup) // every * every)
    return math.inf


def lost_node_bound(part: float, cached: float, origin: float) -> float:
    """Return the time of a run whose cache has lost a `part` of its nodes, at most, as a multiple of the cached one.

    What they held is read from the origin, at worst when all else is done: 1 + part origin / cached. `cached` and
    `origin` are the run's times with all frames in the cache, and none.
    """
    return 1 + part * origin / cached
