"""Closed forms of a run's costs: seconds, bytes and frames of a node, a tree of ranks, the shuffle, the origin.

A node: nothing is shared. Reductions over a tree of ranks follow Thakur, Rabenseifner and Gropp, Int. J. High Perform.
Comput. Appl. 19, 49 (2005), table 2. MPICH uses recursive doubling for short messages and user-defined operations, else
a reduce-scatter and an allgather (Rabenseifner's). The shuffle: a key's shard is the high bits of its hash, and a rank
has consecutive shards (docs/architecture.md), so the record's bytes by part of the key space give the load of each of
few ranks; for many ranks it is a random variable.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, pdtrik

from himach.engine.shuffle.exchange import GROWTH, MAX_PARTNERS, count_messages
from himach.engine.shuffle.waves import WAVE_BYTES
from himach.zazen.node_frames import Tasks
from himach.zazen.rounds import CHUNK_WORDS

Floats = npt.NDArray[np.float64]

FRAME_HEAD = 128  # bytes of a stored frame without positions: head, box, checksums (docs/formats.md)
CHUNK = CHUNK_WORDS * 8  # bytes of a chunk's bitmap
SHORT = 64  # bytes of messages other than bitmaps: sums, claims


def rank_rate(seconds: float, cpu_part: float, ranks: int, cores: float) -> float:
    """Return the frames a second of a node by the utilisation law (Denning, Buzen, ACM Comput. Surv. 10, 225 (1978)).

    Ranks take `seconds` per frame, a part of it processor time, and wait if they need more processors than there are.
    """
    return min(ranks / seconds, cores / (seconds * cpu_part) if cpu_part > 0 else math.inf)


def tail_seconds(frames: int, ranks: int, seconds: float) -> float:
    """Return the median delay of a node's last rank after the mean: half of Graham's bound (1969) on the last task."""
    if ranks == 1 or not frames:
        return 0.0
    tasks = Tasks(frames, ranks)
    first, end = tasks.bounds(len(tasks) - 1)
    return 0.5 * (1 - 1 / ranks) * (end - first) * seconds


def most_of_normals(count: int, level: float) -> float:
    """Return the quantile of the largest of `count` standard normal deviates at a level in (0, 1).

    Its distribution is the count-th power of that of one (David and Nagaraja, Order Statistics, 2003, 2.1); the upper
    tail loses no digits if `count` is large.
    """
    return float(-ndtri(max(-math.expm1(math.log(level) / count), 1e-300)))


def stored_bytes(atoms: int, origin_bytes: float | None) -> float:
    """Return the bytes of a stored frame: those in its origin, which is packed alike, else from its atoms."""
    return origin_bytes or 12.0 * atoms + FRAME_HEAD


def read_seconds(ranks: int, frames: float, seconds: float, nbytes: float, capacity: float, link: float) -> float:
    """Return the seconds in which ranks read ahead and map `frames` frames each from a shared origin.

    A frame has `nbytes` and takes `seconds` of work. The bound is that of a closed network (Denning and Buzen, 1978):
    computing after the first read, or the origin's `capacity` or a rank's own `link` before the last frame.
    """
    alone = nbytes / min(link, capacity)
    return max(frames * seconds + alone, frames * alone + seconds, ranks * frames * nbytes / capacity + seconds)


def steps(nodes: int) -> int:
    """Return the number of pairwise steps until every rank knows of all."""
    return int(nodes - 1).bit_length()


def doubling_seconds(nodes: int, nbytes: float, latency: float, network: float, combine: float) -> float:
    """Return the seconds of an Allreduce by recursive doubling, which sends and combines all bytes in every step."""
    return steps(nodes) * (latency + nbytes / network + nbytes / combine)


def scattered_seconds(nodes: int, nbytes: float, latency: float, network: float, combine: float) -> float:
    """Return the seconds of an Allreduce by Rabenseifner's algorithm, which sends halves, quarters, ... and back."""
    part = (nodes - 1) / nodes
    return 2 * steps(nodes) * latency + part * (2 * nbytes / network + nbytes / combine)


def zazen_bytes(frames: int) -> tuple[float, float]:
    """Return the bytes of bitmaps reduced by MPI (natives) and by a user-defined operation (aliens, two bits)."""
    return frames / 8, frames / 4


def zazen_seconds(nodes: int, frames: int, latency: float, network: float, combine: float) -> float:
    """Return the seconds of all rounds: a chunk costs an Allreduce of natives, one of aliens, and two short sums."""
    if nodes == 1 or not frames:
        return 0.0
    native, counts = zazen_bytes(frames)
    chunks = max(1, -(-native // CHUNK))
    chunk_seconds = scattered_seconds(nodes, native / chunks, latency, network, combine)
    chunk_seconds += doubling_seconds(nodes, counts / chunks, latency, network, combine)
    sums = 2 * doubling_seconds(nodes, SHORT, latency, network, combine)
    return float(chunks * (chunk_seconds + sums) + 2 * steps(nodes) * (latency + SHORT * nodes / network))


def zazen_memory(frames: int, ranks: int) -> float:
    """Return Zazen's peak bytes on a node's first rank: bits of aliens and of the share, and a chunk's buffers."""
    return frames / 8 * (1 + 1 / ranks) + 7 * min(CHUNK, frames / 8)


def exchange_memory(wave: float) -> float:
    """Return a rank's peak bytes for a wave: outgoing, in its node's memory, and received from others."""
    return wave * (1 + 2 * GROWTH)


def held_memory(frames: int, ranks: int, pairs: float) -> float:
    """Return the bytes of a rank, one of `ranks` on its node, in addition to its `pairs` bytes of pairs."""
    return zazen_memory(frames, ranks) + exchange_memory(min(pairs, WAVE_BYTES))


def loads(parts: Floats, ranks: int) -> Floats:
    """Return the bytes of each rank, float64 (ranks,); a divided part is assumed to be even."""
    edges = np.concatenate([[0.0], np.cumsum(parts)])
    return np.diff(np.interp(np.linspace(0, len(parts), ranks + 1), np.arange(len(parts) + 1), edges))


def most_loaded(parts: Floats, keys: float, ranks: int, level: float) -> float:
    """Return the bytes of the most loaded rank, at a level in (0, 1) of its distribution.

    With more ranks than parts, a rank's number of keys is Poisson distributed (balls in bins, Raab and Steger, 1998),
    and it has at least an even share of the heaviest part.
    """
    most, total = float(loads(parts, min(ranks, len(parts))).max(initial=0.0)), float(parts.sum())
    if ranks <= len(parts) or not total or keys < 1:
        return most
    n_ranks = min(ranks, 1 << 16)  # doubling the number of Poisson deviates adds less than one to their maximum
    largest = np.fmax(1.0, np.ceil(pdtrik(level ** (1 / n_ranks), keys / ranks)))
    return max(total / keys * float(largest), float(parts.max()) * len(parts) / ranks)


def exchange_seconds(total: float, nodes: int, ranks: int, latency: float, network: float, most: float) -> float:
    """Return the seconds in which pairs travel between nodes: bytes of the most loaded one, and messages.

    It is the pairwise exchange of Thakur et al. (2005), 5; `most` are the bytes of the most loaded rank.
    """
    if nodes <= 1:
        return 0.0
    waves = max(1.0, -(-most // WAVE_BYTES))
    messages = waves * -(-count_messages(nodes, max(1, ranks // nodes)) // MAX_PARTNERS) * latency
    other_ranks = (ranks / nodes - 1) * (total - most) / max(1, ranks - 1)  # mean bytes of the other ranks of its node
    return float(messages + (most + other_ranks) * (1 - 1 / nodes) / network)
