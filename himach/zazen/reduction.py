"""The two ways to reduce what all nodes hold to what each reads: by a bit a frame, and by a bit a class of frames.

`ByBits` always works. `by_patterns()` seeks the pattern of what each node holds; if every node has one, the patterns
fold the selection to classes, and the same rounds are run on these. Both come to one outcome, `Reduced`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.bitmaps import copy_some, decode, popcount
from himach.zazen.folding import Folded, fold
from himach.zazen.node_frames import NodeFrames, count_chunks
from himach.zazen.positions import Bits, all_of
from himach.zazen.rounds import CHUNK_WORDS, Claims, Leaders, Rules, negotiate

Positions = npt.NDArray[np.int64]


class Reduced(Protocol):
    """What a node has after the rounds.

    Attributes
    ----------
    native, alien, contested
        Frames that this node reads by native copy, by the one alien copy, and by one of several alien copies.
    n_nowhere
        Frames that nobody has claimed, the same on every node.
    """

    native: int
    alien: int
    contested: int
    n_nowhere: int

    def nowhere(self, count: int) -> Positions:
        """Return the first `count` positions that nobody has claimed, int64."""

    def take(self, start: int, amount: int) -> None:
        """Claim what nobody has, from number `start` on; the rest is others'."""

    def surplus(self) -> Iterator[Positions]:
        """Yield positions of alien frames of this node that are needed no more."""


class ByBits:
    """Reduced by a bit a frame; `share` becomes this node's, `rules` are the same on every node."""

    def __init__(self, leaders: Leaders, here: NodeFrames, share: Bits, rules: Rules) -> None:
        counts = here.counts(rules.chunk_words)
        claims = negotiate(leaders, here.native, here.alien, counts, share.count_bits, share.bitmap, rules)
        self._share, self._rules, self._claims = share, rules, claims
        self.native, self.alien, self.contested = claims.native, claims.alien, claims.contested
        self.n_nowhere = int(claims.residue_counts.sum())

    def nowhere(self, count: int) -> Positions:
        """Return the first `count` positions that nobody has claimed, int64."""
        parts = [decode(words, 64 * first, 0, count) for first, words, _ in self._residue()]
        return np.concatenate([*parts, np.empty(0, dtype=np.int64)])[:count]

    def take(self, start: int, amount: int) -> None:
        """Claim what nobody has, from number `start` on; the rest is others'."""
        before = 0
        for first, words, count in self._residue():
            low, high = max(start, before), min(start + amount, before + count)
            if low < high:
                copy_some(words, self._share.bitmap[first : first + len(words)], low - before, high - low)
                self._share.count_bits(first, first + len(words))
            before += count
        self._share.index()

    def surplus(self) -> Iterator[Positions]:
        """Yield positions of alien frames of this node that are needed no more."""
        for first, words in self._claims.surplus:
            yield decode(words, first, 0, popcount(words))

    def _residue(self) -> Iterator[tuple[int, Words, int]]:
        """Yield the first word's number, the words, and the bits of chunks with residue."""
        claims = self._claims
        for i, (words, count) in enumerate(zip(claims.residue, claims.residue_counts.tolist(), strict=True)):
            if words is not None:
                yield i * self._rules.chunk_words, words, count


def by_patterns(leaders: Leaders, here: NodeFrames, limits: list[int], budget: int) -> ByPatterns | None:
    """Reduce by patterns (collective over the leaders); None, on every node, if that does not work.

    It does not if a node's frames follow no pattern, if the patterns together leave more classes than `budget`, if a
    node may hold more than its limit, or if several nodes hold the same class. What is `here` is promising on every
    node.
    """
    patterns = here.patterns()
    told = leaders.comm.allgather(patterns and [pattern.shape for pattern in patterns])
    if patterns is None or None in told:
        return None
    n_frames = here.n_frames
    folded = fold([shape for shapes in told for shape in shapes], n_frames, budget)
    if folded is None:
        return None
    native, alien = map(folded.bits_of, patterns)
    n_here = sum(folded.count(folded.flags_of(words)) for words in (native, alien))
    if leaders.total(np.array([n_here > limits[leaders.node]], dtype=np.int64))[0]:
        return None

    enough = [n_frames] * leaders.size
    rules = Rules(folded.n_bits, n_frames, enough, False, places=folded.places, crowds=folded.crowds)
    counts = count_chunks(native, alien, rules.chunk_words)
    claims = negotiate(leaders, native, alien, counts, lambda first, stop: None, np.empty_like(native), rules)
    return None if claims.torn else ByPatterns(folded, native, claims)


class ByPatterns:
    """Reduced by a bit a class of frames: those that this node held natively, and what came of the rounds.

    After `take`, `share` is this node's, uint64, as `Pieces.to_words` writes it.
    """

    share: Words

    def __init__(self, folded: Folded, native: Words, claims: Claims) -> None:
        self._folded = folded
        self._claimed = folded.flags_of(claims.share)
        residue, surplus = np.zeros_like(native), np.zeros_like(native)
        for i, words in enumerate(claims.residue):
            if words is not None:
                residue[i * CHUNK_WORDS : i * CHUNK_WORDS + len(words)] = words
        for first, words in claims.surplus:
            surplus[first // 64 : first // 64 + len(words)] |= words
        self._residue, self._surplus = folded.flags_of(residue), folded.flags_of(surplus)
        self.native = folded.count(self._claimed & folded.flags_of(native))
        self.contested = claims.contested  # one frame a bit, or the claims were torn
        self.alien = folded.count(self._claimed) - self.native - self.contested
        self.n_nowhere = folded.count(self._residue)

    def nowhere(self, count: int) -> Positions:
        """Return the first `count` positions that nobody has claimed, int64."""
        return self._folded.unfold(self._residue).some(0, count)

    def take(self, start: int, amount: int) -> None:
        """Claim what nobody has, from number `start` on; the rest is others'."""
        residue = self._folded.unfold(self._residue)
        low, high = (residue.some(i, i + 1)[0] for i in (start, start + amount - 1)) if amount else (0, -1)
        self.share = self._folded.unfold(self._claimed, (self._residue, int(low), int(high) + 1)).to_words()

    def surplus(self) -> Iterator[Positions]:
        """Yield positions of alien frames of this node that are needed no more."""
        return all_of(self._folded.unfold(self._surplus))
