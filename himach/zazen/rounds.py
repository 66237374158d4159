"""The rounds in which node leaders agree who holds which frame.

`Leaders` are the reductions over node leaders, counted by kind. `negotiate()` runs the rounds chunk by chunk, so that what
an Allreduce brings is decided on while it is in cache, and returns `Claims`: what this node reads, and what remains.

A node's bitmaps are `share` (in: its native frames; out: the frames it claims) and `alien` (in: its alien frames; out:
the residue, which is the same on every node).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.comm import Words, World
from himach.zazen.bitmaps import (
    block_counts,
    claim,
    contested,
    copy_some,
    merge_counts,
    open_counts,
    popcount,
    priority_plane,
)

__all__ = ["CHUNK_WORDS", "Claims", "Leaders", "negotiate"]

# Bitmap words in a chunk: a chunk's bitmaps and counts, seven times this, stay in cache between the steps.
CHUNK_WORDS = 1 << 15

BLOCKS_PER_NODE = 64  # runs of positions in which contested frames go to one order of nodes


class Leaders:
    """Reductions over the leaders of all nodes; does nothing but copy where there is one node.

    Attributes
    ----------
    node
        Index of this node.
    size
        Number of nodes.
    rounds
        Allreduces of bitmaps so far, by kind.
    """

    def __init__(self, world: World) -> None:
        assert world.leaders is not None
        self.comm = world.leaders
        self.node = world.node_index
        self.size = self.comm.size
        self.rounds: Counter[str] = Counter()
        self._world = world
        self._op: Any = None

    def union(self, kind: str, words: Words, out: Words) -> None:
        """Write the bits that any node has set."""
        self._reduce(kind, words, out, self._world.bor)

    def count(self, kind: str, counts: Words, out: Words) -> None:
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
        """Free the reduction (MPI libraries have few places for them)."""
        if self._op is not None:
            self._op.Free()
            self._op = None

    def _reduce(self, kind: str, words: Words, out: Words, op: Any) -> None:
        if self.size == 1:
            out[...] = words
            return
        self.rounds[kind] += 1
        self.comm.Allreduce(words, out, op)


@dataclass
class Claims:
    """What one node has after the rounds.

    Attributes
    ----------
    share
        uint64: frames that this node claims.
    residue
        uint64: frames that no node claims, the same on every node.
    residue_counts
        int64 (n_chunks,): bits of `residue` a chunk.
    native, alien, contested
        Number of frames in `share` by native copy, by the one alien copy, and by one of several alien copies.
    surplus
        First position and bits of those chunks in which alien frames of this node are needed no more.
    """

    share: Words
    residue: Words
    residue_counts: npt.NDArray[np.int64]
    native: int = 0
    alien: int = 0
    contested: int = 0
    surplus: list[tuple[int, Words]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of frames in `share`."""
        return self.native + self.alien + self.contested


def negotiate(
    leaders: Leaders, share: Words, alien: Words, n_positions: int, limit: int, give_up: bool, chunk_words: int
) -> Claims:
    """Agree on who holds which frame (collective over the leaders).

    Parameters
    ----------
    leaders
        The leaders' reductions.
    share, alien
        uint64: native and alien frames of this node; become `Claims.share` and `Claims.residue`.
    n_positions
        Frames in the selection.
    limit
        As many frames are enough for this node: it claims contested frames after others.
    give_up
        Whether it leaves what it holds beyond `limit` to the others as residue (so that one of them must be able to
        read it elsewhere).
    chunk_words
        Words in a chunk, the same on every node.
    """
    return _Negotiation(leaders, share, alien, n_positions, limit, give_up, chunk_words).run()


class _Negotiation:
    """The state of `negotiate()`: the node's claims, and buffers of a chunk."""

    def __init__(
        self,
        leaders: Leaders,
        share: Words,
        alien: Words,
        n_positions: int,
        limit: int,
        give_up: bool,
        chunk_words: int,
    ) -> None:
        self.leaders = leaders
        self.n_positions = n_positions
        self.limit = limit
        self.give_up = give_up
        self.chunk_words = chunk_words
        self.prime = _prime_from(leaders.size)
        self.shift = max(1, n_positions // (BLOCKS_PER_NODE * leaders.size)).bit_length() - 1
        n_chunks = -(-len(share) // chunk_words)
        self.claims = Claims(share, alien, np.zeros(n_chunks, dtype=np.int64))
        size = min(chunk_words, len(share))
        self._taken = np.empty(size, dtype=np.uint64)
        self._rest = np.empty(size, dtype=np.uint64)
        self._mine = np.empty(2 * size, dtype=np.uint64)
        self._counts = np.empty(2 * size, dtype=np.uint64)

    def run(self) -> Claims:
        claims = self.claims
        held = np.zeros((2, len(claims.residue_counts)), dtype=np.int64)
        block_counts(claims.share, self.chunk_words, held[0])
        block_counts(claims.residue, self.chunk_words, held[1])
        if self.give_up:
            self._keep_natives(held[0])
        claims.native = int(held[0].sum())
        natives, aliens = self.leaders.total(held)
        for i, first in enumerate(self._chunks()):
            self._chunk(i, first, int(natives[i]), int(aliens[i]))
        return claims

    def _chunks(self) -> Iterator[int]:
        return iter(range(0, len(self.claims.share), self.chunk_words))

    def _keep_natives(self, counts: npt.NDArray[np.int64]) -> None:
        """Keep the first `limit` native frames; the rest counts as not held, here and in `counts`."""
        before = np.cumsum(counts) - counts
        for i, first in enumerate(self._chunks()):
            keep = max(0, min(int(counts[i]), self.limit - int(before[i])))
            if keep < counts[i]:
                words = self.claims.share[first : first + self.chunk_words]
                kept = np.zeros_like(words)
                copy_some(words, kept, 0, keep)
                words[...] = kept
                counts[i] = keep

    def _chunk(self, i: int, first: int, natives: int, aliens: int) -> None:
        """Decide on the chunk of words from `first` on, of which nodes hold so many natives and aliens, added up."""
        claims = self.claims
        share = claims.share[first : first + self.chunk_words]
        mine = claims.residue[first : first + self.chunk_words]
        taken = self._taken[: len(share)]
        n_bits = min(64 * len(share), self.n_positions - 64 * first)
        n_taken = self._agree_natives(first, share, taken, natives)
        rest = self._rest[: len(share)]
        if n_taken == n_bits or not aliens:
            left = n_bits - n_taken
            np.invert(taken, out=rest)
            if aliens:
                self._shed(first, mine & taken)
        else:
            left = self._agree_aliens(first, share, mine, taken, rest, n_bits - n_taken)
        if n_bits & 63:
            rest[-1] &= np.uint64((1 << (n_bits & 63)) - 1)
        mine[...] = rest
        claims.residue_counts[i] = left

    def _agree_natives(self, first: int, share: Words, taken: Words, natives: int) -> int:
        """Round one: write what any node has as native frames to `taken`, leave each to one node; return how many."""
        if not natives:
            taken[...] = 0
            return 0
        self.leaders.union("native", share, taken)
        n_taken = popcount(taken)
        if natives > n_taken:  # a frame native on two nodes at least
            counts, held = self._counts[: 2 * len(share)], self._mine[: 2 * len(share)]
            open_counts(np.zeros_like(share), share, held)
            self.leaders.count("native count", held, counts)
            more = np.empty_like(share)
            contested(counts, more)
            before = popcount(share)
            won = self._one_holder("native holder", first, share, more, full=None)
            share &= ~more | won
            self.claims.native -= before - popcount(share)
        return n_taken

    def _agree_aliens(self, first: int, share: Words, mine: Words, taken: Words, rest: Words, n_open: int) -> int:
        """Round two: claim what is alien here alone, write the rest to `rest`; return how many positions that is."""
        claims = self.claims
        held, counts = self._mine[: 2 * len(share)], self._counts[: 2 * len(share)]
        here = open_counts(taken, mine, held)
        excess_possible = self.give_up and claims.size + here > self.limit
        anywhere, excess_anywhere = self.leaders.total(np.array([here, excess_possible], dtype=np.int64))
        if not anywhere:
            np.invert(taken, out=rest)
            self._shed(first, mine & taken)
            return n_open
        self.leaders.count("alien", held, counts)
        claimed, left, several, surplus = claim(taken, counts, mine, share, rest)
        left -= 64 * len(share) - min(64 * len(share), self.n_positions - 64 * first)
        claims.alien += claimed
        if several:
            self._agree_contested(first, share, mine, taken, counts)
        elif surplus:
            self._shed(first, mine & taken)
        if excess_anywhere:
            left += self._give_up_excess(share, mine, taken, counts, rest)
        return left

    def _agree_contested(self, first: int, share: Words, mine: Words, taken: Words, counts: Words) -> None:
        """Leave each frame with several alien copies to one of its holders; the other copies are surplus."""
        more = np.empty_like(share)
        contested(counts, more)
        won = self._one_holder("alien holder", first, mine, more, full=self.claims.size >= self.limit)
        share |= won
        self.claims.contested += popcount(won)
        self._shed(first, mine & (taken | more) & ~won)

    def _give_up_excess(self, share: Words, mine: Words, taken: Words, counts: Words, rest: Words) -> int:
        """Move what nodes claim beyond their limits to `rest`, which is residue; return how many frames that is."""
        claims = self.claims
        given = np.zeros_like(share)
        excess = claims.size - self.limit
        if excess > 0:
            claimed = mine & share & ~taken
            copy_some(claimed, given, popcount(claimed) - excess, excess)
            more = np.empty_like(share)
            contested(counts, more)
            n_contested = popcount(given & more)
            claims.contested -= n_contested
            claims.alien -= excess - n_contested
            share &= ~given
        given_anywhere = np.empty_like(share)
        self.leaders.union("given up", given, given_anywhere)
        rest |= given_anywhere
        return popcount(given_anywhere)

    def _one_holder(self, kind: str, first: int, held: Words, more: Words, full: bool | None) -> Words:
        """Return those bits of `more` that are this node's of all holders.

        Holders of a frame are compared by priority, highest bit first: those with the bit clear, if there are any,
        push out those with the bit set. Each bit is one bitwise-or over the words that have contested bits. A `full`
        node comes after all others.
        """
        at = np.flatnonzero(more)
        candidates = held[at] & more[at]
        others = np.empty_like(candidates)
        clear = np.empty_like(candidates)
        numbers = at.astype(np.int64) + first
        for bit in range((self.prime - 1).bit_length() - (full is None), -1, -1):
            if full is not None and bit == (self.prime - 1).bit_length():
                clear[...] = 0 if full else np.iinfo(np.uint64).max
            else:
                priority_plane(numbers, clear, self.shift, self.leaders.node, self.prime, bit)
            self.leaders.union(kind, candidates & clear, others)
            candidates &= clear | ~others
        won = np.zeros_like(more)
        won[at] = candidates
        return won

    def _shed(self, first: int, surplus: Words) -> None:
        if surplus.any():
            self.claims.surplus.append((64 * first, surplus))


def _prime_from(n: int) -> int:
    """Return the smallest prime that is no smaller than `n` and 2."""
    n = max(n, 2)
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n
