"""Closed forms of what a run takes: seconds, bytes and frames of a node, a tree of ranks, the shuffle, the origin.

A node: nothing is shared. Reductions over a tree of ranks are those of Thakur, Rabenseifner and Gropp, Int. J. High
Perform. Comput. Appl. 19, 49 (2005), table 2: of MPICH, which takes recursive doubling for short messages and for
operations that are a user's own, else a reduce-scatter and an allgather (Rabenseifner's). The shuffle: a key's shard is
the high bits of its hash and a rank has neighbouring shards (docs/architecture.md), so the record's bytes by part of
the key space say what each of few ranks gets; of many it is drawn. Failures: a rank that dies ends the run, which
begins anew, or goes on from the last commit of kept pairs; nodes fail independently at a constant rate.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, pdtrik

from himach.engine.shuffle.exchange import GROWTH, MAX_PARTNERS, count_messages
from himach.engine.shuffle.waves import WAVE_BYTES
from himach.zazen.node_frames import Tasks
from himach.zazen.rounds import CHUNK_WORDS

Floats = npt.NDArray[np.float64]

FRAME_HEAD = 128  # bytes of a frame in a store beside its positions: head, box, checksums (docs/formats.md)
CHUNK = CHUNK_WORDS * 8  # bytes of a chunk's bitmap
SHORT = 64  # bytes of messages beside bitmaps: sums, claims


def rank_rate(seconds: float, cpu_part: float, ranks: int, cores: float) -> float:
    """Return the frames a second of a node whose ranks each take `seconds` a frame, of which a part is processor time.

    Ranks wait for processors once they need more than there are: the utilisation law (Denning and Buzen, ACM Computing
    Surveys 10, 225 (1978)).
    """
    if seconds <= 0:
        return math.inf
    return min(ranks / seconds, cores / (seconds * cpu_part) if cpu_part > 0 else math.inf)


def tail_seconds(frames: int, ranks: int, seconds: float) -> float:
    """Return how much later than the mean the last rank of a node ends, at the median: half the bound.

    The bound is (1 - 1/ranks) of the last task (Graham, SIAM J. Appl. Math. 17, 416 (1969)).
    """
    if ranks == 1 or not frames:
        return 0.0
    tasks = Tasks(frames, ranks)
    first, end = tasks.bounds(len(tasks) - 1)
    return 0.5 * (1 - 1 / ranks) * (end - first) * seconds


def most_of_normals(count: int, level: float) -> float:
    """Return the quantile of the largest of `count` standard normal deviates at a level in (0, 1).

    The distribution of the largest is the count-th power of one's (David and Nagaraja, Order Statistics, 2003, 2.1);
    by the upper tail, no digits are lost where `count` is large.
    """
    return float(-ndtri(max(-math.expm1(math.log(level) / count), 1e-300)))


def stored_bytes(atoms: int, origin_bytes: float | None) -> float:
    """Return the bytes of a frame in a store: as in its origin, whose integers are packed alike, else by its atoms."""
    return origin_bytes or 12.0 * atoms + FRAME_HEAD


def read_seconds(ranks: int, frames: float, seconds: float, nbytes: float, capacity: float, link: float) -> float:
    """Return the seconds in which ranks read ahead and map `frames` frames each, of an origin that all share.

    The asymptotic bound of a closed network (Denning and Buzen, 1978), which ranks that read ahead reach: computing
    behind the first read, or the origin or a rank's own `link` before the last frame. A frame has `nbytes` and takes
    `seconds` of work; `capacity` are bytes a second of the origin for all.
    """
    alone = nbytes / min(link, capacity)
    return max(frames * seconds + alone, frames * alone + seconds, ranks * frames * nbytes / capacity + seconds)


def steps(nodes: int) -> int:
    """Return how many times ranks pair up until all know of all."""
    return int(nodes - 1).bit_length()


def doubling_seconds(nodes: int, nbytes: float, latency: float, network: float, combine: float) -> float:
    """Return the seconds of an Allreduce by recursive doubling: all bytes go and are combined in every step."""
    return steps(nodes) * (latency + nbytes / network + nbytes / combine)


def scattered_seconds(nodes: int, nbytes: float, latency: float, network: float, combine: float) -> float:
    """Return the seconds of an Allreduce by Rabenseifner's algorithm: halves, quarters, ... go, and come back."""
    part = (nodes - 1) / nodes
    return 2 * steps(nodes) * latency + part * (2 * nbytes / network + nbytes / combine)


def zazen_bytes(frames: int) -> tuple[float, float]:
    """Return the bytes of the bitmaps that the library reduces (natives), and an own operation (aliens, two bits)."""
    return frames / 8, frames / 4


def zazen_seconds(nodes: int, frames: int, latency: float, network: float, combine: float) -> float:
    """Return the seconds of all of Zazen's rounds.

    A chunk costs an Allreduce of natives, one of counts of aliens, and two sums of few bytes.
    """
    if nodes == 1 or not frames:
        return 0.0
    native, counts = zazen_bytes(frames)
    chunks = max(1, -(-native // CHUNK))
    chunk_seconds = scattered_seconds(nodes, native / chunks, latency, network, combine)
    chunk_seconds += doubling_seconds(nodes, counts / chunks, latency, network, combine)
    sums = 2 * doubling_seconds(nodes, SHORT, latency, network, combine)
    return float(chunks * (chunk_seconds + sums) + 2 * steps(nodes) * (latency + SHORT * nodes / network))


def zazen_memory(frames: int, ranks: int) -> float:
    """Return the most bytes that Zazen takes of a node's first rank, with its part of what the node's `ranks` share.

    A bit a frame for aliens, then for the residue; a bit for the node's share, which stays; a chunk's buffers.
    """
    return frames / 8 * (1 + 1 / ranks) + 7 * min(CHUNK, frames / 8)


def exchange_memory(wave: float) -> float:
    """Return the most bytes of a rank for a wave: as it leaves, in its node's memory, and as it came from others."""
    return wave * (1 + 2 * GROWTH)


def held_memory(frames: int, ranks: int, pairs: float) -> float:
    """Return the bytes that a rank of a node of so many takes beside its `pairs`, which are so many bytes."""
    return zazen_memory(frames, ranks) + exchange_memory(min(pairs, WAVE_BYTES))


def loads(parts: Floats, ranks: int) -> Floats:
    """Return the bytes of each rank, float64 (ranks,); a part that is cut in two is taken to be even."""
    edges = np.concatenate([[0.0], np.cumsum(parts)])
    return np.diff(np.interp(np.linspace(0, len(parts), ranks + 1), np.arange(len(parts) + 1), edges))


def most_loaded(parts: Floats, keys: float, ranks: int, level: float) -> float:
    """Return the bytes of the rank that has most, at a level in (0, 1) of its distribution.

    Up to as many ranks as parts this is known. Beyond, a rank's keys are Poisson's (balls in bins, Raab and Steger,
    1998), and it has of the heaviest part at least what it has where that is even.
    """
    most, total = float(loads(parts, min(ranks, len(parts))).max(initial=0.0)), float(parts.sum())
    if ranks <= len(parts) or not total or keys < 1:
        return most
    n_ranks = min(ranks, 1 << 16)  # the largest of many Poisson deviates grows by less than one as their number doubles
    largest = np.fmax(1.0, np.ceil(pdtrik(level ** (1 / n_ranks), keys / ranks)))
    return max(total / keys * float(largest), float(parts.max()) * len(parts) / ranks)


def exchange_seconds(total: float, nodes: int, ranks: int, latency: float, network: float, most: float) -> float:
    """Return the seconds in which the pairs travel: what a node sends and gets, and a message for each two nodes.

    The pairwise exchange of Thakur et al. (2005), 5, of nodes, whose ranks share the others: each receives from few at
    a time. What stays within a node does not travel. `most` is what the most loaded rank gets.
    """
    if nodes <= 1:
        return 0.0
    waves = max(1.0, -(-most // WAVE_BYTES))
    messages = waves * -(-count_messages(nodes, max(1, ranks // nodes)) // MAX_PARTNERS) * latency
    others = (ranks / nodes - 1) * (total - most) / max(1, ranks - 1)  # what the others of its node get, at the mean
    return float(messages + (most + others) * (1 - 1 / nodes) / network)


def without_pairs(seconds: float, rate: float) -> float:
    """Return the expected time of a run of `seconds` that begins anew after each failure, `rate` of them a second.

    (exp(rate seconds) - 1) / rate: Daly, Future Gener. Comput. Syst. 22, 303 (2006), equation 13 with one segment.
    """
    if rate * seconds > 700:
        return math.inf
    return math.expm1(rate * seconds) / rate if rate > 0 else seconds


def with_pairs(startup: float, mapping: float, rest: float, interval: float, rate: float) -> float:
    """Return the expected time of a run that goes on where the last commit was; there is one each `interval` seconds.

    Daly's equation 13: segments of `interval` seconds, after each failure a start; what follows map() is one segment.
    There is a commit at the end of map(), too.
    """
    if rate <= 0:
        return startup + mapping + rest
    interval = min(interval, mapping) or interval
    restart = rate * startup
    if max(restart + rate * interval, restart + rate * rest) > 700:
        return math.inf
    segments = math.expm1(rate * interval) * mapping / interval + math.expm1(rate * rest)
    return without_pairs(startup, rate) + math.exp(restart) * segments / rate
