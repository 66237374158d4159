"""Failures: how much longer a run takes because nodes fail, with and without kept pairs.

A rank that dies ends the run (docs/architecture.md), which is started again: from the beginning, or with kept pairs
from the last commit. Nodes fail independently of each other at a constant rate, so the machine does at their sum.
"""

from __future__ import annotations

import math

__all__ = ["with_pairs", "without_pairs"]


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
