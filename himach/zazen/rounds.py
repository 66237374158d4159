"""The rounds in which node leaders learn who holds which frame.

`Leaders` are the reductions over node leaders, counted by kind. `Negotiation` runs the rounds chunk by chunk: a chunk's
bits are exchanged and decided while they are in cache. It returns `himach.zazen.claims.Claims`: the frames that this
node reads, and the residue.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.ranks.communicator import Words, World
from himach.zazen.bitmaps import claim, merge_counts, open_counts
from himach.zazen.claims import Bits, Claims, copy_some, popcount

# Bitmap words in a chunk: its bitmaps and counts, seven times this size, stay in cache between steps.
CHUNK_WORDS = 1 << 16

BLOCKS_PER_NODE = 256  # blocks of positions per node; within a block, nodes have one order of priority


class Leaders:
    """Reductions over the leaders of all nodes; with one node they only copy."""

    def __init__(self, world: World) -> None:
        assert world.leaders is not None
        self.comm = world.leaders
        self.node = world.node_index
        self.size = self.comm.size
        self.rounds: Counter[str] = Counter()
        self._world = world
        self._op: Any = None

    def union(self, kind: str, words: "Words", out: "Words") -> None:
        """Write the bits that any node has set."""
        self._reduce(kind, words, out, self._world.bor)

    def count(self, kind: str, counts: "Words", out: "Words") -> None:
        """Write the two-bit sums of all nodes' counts."""
        if self._op is None and self.size > 1:
            self._op = self._world.make_op(merge_counts)
        self._reduce(kind, counts, out, self._op)

    def total(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sums over all nodes."""
        if self.size == 1:
            return numbers
        out = np.empty_like(numbers)
        self.comm.Allreduce(numbers, out, self._world.sum)
        return out

    def close(self) -> None:
        """Free the reduction, because MPI libraries allow few of them; it is recreated on demand."""
        if self._op is not None:
            self._op.Free()
            self._op = None

    def _reduce(self, kind: str, words: "Words", out: "Words", op: Any) -> None:
        if self.size == 1:
            out[...] = words
            return
        self.rounds[kind] += 1
        self.comm.Allreduce(words, out, op)


@dataclass
class _Chunk:
    """One chunk of a node's bitmaps, and its work buffers.

    `first` is its first word in the selection's bitmap. `aliens` are the node's alien frames, `share` its claims,
    initially its native frames; `natives` are those of all nodes, `rest` the residue. `own` are this node's two-bit
    counts, `counts` the sums over all nodes.
    """

    first: int
    n_bits: int
    aliens: "Words"
    share: "Words"
    natives: "Words"
    rest: "Words"
    own: "Words"
    counts: "Words"

    def contested(self) -> "Words":
        """Return the positions with several holders."""
        low, high = self.counts[::2], self.counts[1::2]  # see words.h
        return (low >> np.uint64(32)) | (high & np.uint64(0xFFFFFFFF00000000))


class Negotiation:
    """Decides who reads each held frame, by rules that all nodes know (collective over the leaders).

    A node whose frames exceed its limit leaves the excess to others if it may `give_up` some.
    """

    def __init__(
        self, leaders: Leaders, alien: "Words", share: Bits, n_frames: int, limits: Sequence[int], give_up: bool,
        chunk_words: int,
    ) -> None:  # fmt: skip
        self.leaders = leaders
        self.alien = alien
        self.claims = Claims(share)
        self.n_frames = n_frames  # of the selection, one bit each
        self.limit = limits[leaders.node]
        self.limited = min(limits) < n_frames
        self.give_up = give_up
        self.chunk_words = chunk_words
        self.prime = _prime_from(leaders.size)
        self.shift = max(1, n_frames // (BLOCKS_PER_NODE * leaders.size)).bit_length() - 1
        size = min(chunk_words, len(share.bitmap))
        self._buffers = [np.empty(times * size, dtype=np.uint64) for times in (1, 1, 2, 2)]

    def run(self, counts: npt.NDArray[np.int64]) -> Claims:
        """Return what this node reads, also written to the share, which has its native frames at first.

        `counts`: int64 (2, n_chunks): numbers of this node's native and alien frames in each chunk.
        """
        claims = self.claims
        claimed = counts.copy()
        if self.give_up:  # the first `limit` natives; the rest counts as not held
            claimed[0] = np.diff(np.minimum(np.cumsum(counts[0]), self.limit), prepend=0)
        claims.native = int(claimed[0].sum())
        # All nodes know the totals of every chunk, so that all skip the same rounds.
        natives, aliens = self.leaders.total(claimed).tolist()
        for i in range(-(-self.n_frames // (64 * self.chunk_words))):
            chunk = self._chunk(i)
            if claimed[0, i] < counts[0, i]:
                natives_here = chunk.share.copy()
                chunk.share[...] = 0
                copy_some(natives_here, chunk.share, 0, int(claimed[0, i]))
            left = self._decide(chunk, natives[i], aliens[i])
            claims.share.count_bits(chunk.first, chunk.first + len(chunk.share))
            if left:
                chunk.aliens[...] = chunk.rest  # the alien bits are no longer needed
                claims.residue.append((chunk.first, chunk.aliens, left))
        return claims

    def _chunk(self, number: int) -> _Chunk:
        first = number * self.chunk_words
        aliens, share = (words[first : first + self.chunk_words] for words in (self.alien, self.claims.share.bitmap))
        natives, rest, own, counts = self._buffers
        n = len(share)
        n_bits = min(64 * n, self.n_frames - 64 * first)
        return _Chunk(first, n_bits, aliens, share, natives[:n], rest[:n], own[: 2 * n], counts[: 2 * n])

    def _decide(self, chunk: _Chunk, natives: int, aliens: int) -> int:
        """Decide on a chunk, given its total numbers of natives and aliens; return the size of the residue."""
        n_open = chunk.n_bits - self._reduce_natives(chunk, natives)
        left = (self._reduce_aliens if n_open and aliens else self._leave_open)(chunk, n_open)
        if chunk.n_bits & 63:
            chunk.rest[-1] &= np.uint64((1 << (chunk.n_bits & 63)) - 1)
        return left

    def _leave_open(self, chunk: _Chunk, n_open: int) -> int:
        """Leave all frames that are not native as residue."""
        np.invert(chunk.natives, out=chunk.rest)
        self._add_surplus(chunk, chunk.aliens & chunk.natives)
        return n_open

    def _reduce_natives(self, chunk: _Chunk, natives: int) -> int:
        """Round one: find all native frames and leave each to one node; return their number."""
        if not natives:
            chunk.natives[...] = 0
            return 0
        self.leaders.union("native", chunk.share, chunk.natives)
        n_native = popcount(chunk.natives)
        if natives > n_native:  # at least one frame is native on several nodes
            open_counts(np.zeros_like(chunk.share), chunk.share, chunk.own)
            self.leaders.count("native count", chunk.own, chunk.counts)
            before, more = popcount(chunk.share), chunk.contested()
            won = self._one_holder("native holder", chunk.first, chunk.share, more, None)
            chunk.share &= ~more | won
            self.claims.native -= before - popcount(chunk.share)
        return n_native

    def _reduce_aliens(self, chunk: _Chunk, n_open: int) -> int:
        """Round two: claim frames that are alien only here; return the size of the residue."""
        claims = self.claims
        n_here = open_counts(chunk.natives, chunk.aliens, chunk.own)
        excess = self.give_up and claims.size + n_here > self.limit
        anywhere, excess_anywhere = self.leaders.total(np.array([n_here, excess], dtype=np.int64)).tolist()
        if not anywhere:
            return self._leave_open(chunk, n_open)
        self.leaders.count("alien", chunk.own, chunk.counts)
        claimed, left, several, surplus = claim(chunk.natives, chunk.counts, chunk.aliens, chunk.share, chunk.rest)
        left -= 64 * len(chunk.share) - chunk.n_bits
        claims.alien += claimed
        if several:
            self._reduce_contested(chunk)
        elif surplus:
            self._add_surplus(chunk, chunk.aliens & chunk.natives)
        if excess_anywhere:
            left += self._give_up_excess(chunk)
        return left

    def _reduce_contested(self, chunk: _Chunk) -> None:
        """Leave each frame with several alien copies to one of its holders; the other copies are surplus."""
        more = chunk.contested()
        full = self.claims.size >= self.limit if self.limited else None
        won = self._one_holder("alien holder", chunk.first, chunk.aliens, more, full)
        chunk.share |= won
        self.claims.contested += popcount(won)
        self._add_surplus(chunk, chunk.aliens & (chunk.natives | more) & ~won)

    def _give_up_excess(self, chunk: _Chunk) -> int:
        """Move claims beyond the nodes' limits to the residue; return their number."""
        claims = self.claims
        released = np.zeros_like(chunk.share)
        excess = claims.size - self.limit
        if excess > 0:
            claimed = chunk.aliens & chunk.share & ~chunk.natives
            copy_some(claimed, released, popcount(claimed) - excess, excess)
            n_contested = popcount(released & chunk.contested())
            claims.contested -= n_contested
            claims.alien -= excess - n_contested
            chunk.share &= ~released
        anywhere = np.empty_like(released)
        self.leaders.union("given up", released, anywhere)
        chunk.rest |= anywhere
        return popcount(anywhere)

    def _one_holder(self, kind: str, first: int, own: "Words", more: "Words", full: bool | None) -> "Words":
        """Return the bits of `more` that this node wins among all holders.

        Holders of a frame are compared by priority, highest bit first: holders with a clear bit eliminate those with
        the bit set. Each bit takes one bitwise-or over the words that have contested bits. A `full` node comes after
        all others; None: no node can be full.
        """
        at = np.flatnonzero(more)
        candidates = own[at] & more[at]
        others = np.empty_like(candidates)
        for clear in self._planes(at + first, full):
            self.leaders.union(kind, candidates & clear, others)
            candidates &= clear | ~others
        won = np.zeros_like(more)
        won[at] = candidates
        return won

    def _planes(self, word_numbers: npt.NDArray[np.int64], full: bool | None) -> "Iterator[Words]":
        """Yield where each bit of this node's priority is clear, from the highest bit on."""
        if full is not None:
            yield np.full(len(word_numbers), 0 if full else 2**64 - 1, np.uint64)
        yield from priority_planes(word_numbers, self.shift, self.leaders.node, self.prime)

    def _add_surplus(self, chunk: _Chunk, surplus: "Words") -> None:
        if surplus.any():
            self.claims.shed.append((64 * chunk.first, surplus))


def priority_planes(word_numbers: npt.NDArray[np.int64], shift: int, node: int, prime: int) -> "Iterator[Words]":
    """Yield words of the bitmap with the bits set where a bit of a node's priority is 0, from the highest bit on.

    In every block of ``1 << shift`` positions the nodes have another order: node i has priority (a i + b) mod p, with a
    and b drawn by hash from the block's number and p a prime no smaller than the number of nodes. All nodes compute
    the same order; two nodes never have one priority.
    """
    width = 1 << min(shift, 6)
    offsets = np.arange(0, 64, width)
    runs = np.array([(1 << width) - 1 << offset for offset in offsets.tolist()], np.uint64)
    drawn = _mixed((64 * word_numbers[:, np.newaxis] + offsets >> shift).astype(np.uint64))
    priorities = ((1 + (drawn & 0xFFFFFFFF) % (prime - 1)) * node + (drawn >> 32)) % prime
    for bit in range((prime - 1).bit_length() - 1, -1, -1):
        yield np.where(priorities >> bit & 1, 0, runs).sum(axis=1, dtype=np.uint64)


def _mixed(x: "Words") -> "Words":
    """Finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _prime_from(n: int) -> int:
    """Return the smallest prime that is at least max(n, 2)."""
    n = max(n, 2)
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n
