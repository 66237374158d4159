"""The shuffle and reduce(): what each rank gets of the pairs, and what that takes.

A key's shard is the high bits of its hash and a rank has neighbouring shards (docs/architecture.md). So the record's
bytes by part of the key space say what each of few ranks gets, whatever ranks made the record; of many it is drawn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.engine.shuffle.exchange import FEW
from himach.engine.shuffle.waves import WAVE

__all__ = ["exchange_seconds", "loads", "most_loaded"]

Floats = npt.NDArray[np.float64]


def loads(parts: Floats, ranks: int) -> Floats:
    """Return the bytes of each rank, float64 (ranks,); where a part is cut in two, they are taken to be even in it."""
    edges = np.concatenate([[0.0], np.cumsum(parts)])
    at = np.linspace(0, len(parts), ranks + 1)
    return np.diff(np.interp(at, np.arange(len(parts) + 1), edges))


def most_loaded(parts: Floats, keys: float, ranks: int, rng: np.random.Generator) -> float:
    """Return the bytes of the rank that has most.

    Up to as many ranks as parts this is known. Beyond, a rank's keys are Poisson's (balls in bins, Raab and Steger,
    1998); and a rank has one key at least or none, and of the heaviest part at least what it has where that is even.
    """
    most = float(loads(parts, min(ranks, len(parts))).max(initial=0.0))
    total = float(parts.sum())
    if ranks <= len(parts) or not total or keys < 1:
        return most
    mean = keys / ranks
    few = min(ranks, 1 << 16)  # the largest of many Poisson deviates grows by less than one as their number doubles
    thrown = total / keys * float(max(1, rng.poisson(mean, few).max()))
    return max(thrown, float(parts.max()) * len(parts) / ranks)


def exchange_seconds(total: float, nodes: int, ranks: int, latency: float, network: float, most: float) -> float:
    """Return the seconds in which the pairs travel: what a node sends and gets, and a message for each pair of ranks.

    The pairwise exchange of Thakur et al. (2005), 5: ranks send to few at a time. What stays within a node does not
    travel. `most` is what the most loaded rank gets.
    """
    if nodes <= 1:
        return 0.0
    waves = max(1.0, -(-most // WAVE))
    messages = waves * -(-(ranks - 1) // FEW) * latency
    beside = (ranks / nodes - 1) * (total - most) / max(1, ranks - 1)  # what the others of its node get, at the mean
    return float(messages + (most + beside) * (1 - 1 / nodes) / network)
