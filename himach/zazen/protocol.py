"""The Zazen protocol: who reads which frame.

There is no server that knows what is cached where. Each node's own store marks what it holds of the selection in two
bitmaps, native and alien frames, one bit a position; the leaders of the nodes reduce these bitmaps over all nodes; and
every node decides by itself, from the reduced bitmaps and its own, which frames are its to read:

1. A native frame is read by the node that holds it. Reducing native bitmaps with bitwise or tells every node which
   frames are taken.
2. Of the frames left open, one that is alien on exactly one node is read by that node. Reducing two-bit counts of
   holders that saturate (00 none, 01 one, 10 more) tells a holder whether it is the only one.
3. The residue is divided. A frame with several alien copies goes to one of their holders, and the other copies are
   surplus. A frame that lies nowhere is read from the origin: all nodes know the same bitmap of such frames, and each
   node's load, so each takes its contiguous run of them such that loads become as even as they can.

Two exceptions keep this safe and even. If the natives of all nodes add up to more than the bits of their union, a frame
is native on several nodes: then these are counted with two bits too, and one of the holders reads. And a node that
holds more than twice its part leaves the rest to others while the origin can be reached: natives before round one, so
that an alien copy elsewhere may claim them, aliens after round two.

Where what is cached follows patterns, the same is done with one bit for all frames that are alike on every node, so
that the cost follows the patterns and what deviates from them.

`assign()` is the protocol: `himach.zazen.reduction` has both ways, with a bit a frame and with a bit a class,
`himach.zazen.rounds` what is exchanged, and what a node gets is a `himach.zazen.share.Share`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from himach.errors import TrajectoryError, UsageError
from himach.parallel.communicator import Words, World
from himach.zazen.node_frames import NOTHING, Cached, NodeFrames
from himach.zazen.positions import Bits, Pieces, n_words
from himach.zazen.reduction import ByBits, ByPatterns, Reduced, by_patterns
from himach.zazen.remaining import Selection
from himach.zazen.rounds import CHUNK_WORDS, Leaders, Rules
from himach.zazen.share import Share

ENOUGH = 2  # times its part of all frames: what a node holds beyond it, others read
NAMED = 5  # frames that an error message names
FRAMES_PER_CLASS = 1 << 14  # at least, on average: more classes cost more than bitmaps save
FEW = 1 << 22  # frames whose bitmaps cost less than looking for patterns


@dataclass(frozen=True)
class _Request:
    """The arguments of `assign()` that are the same on every rank."""

    frames: Selection
    origin: bool
    whole: bool
    chunk_words: int
    classes: int


@dataclass
class _Outcome:
    """What a leader tells the ranks of its node."""

    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def assign(
    world: World,
    cached: Cached | None,
    frames: Selection,
    *,
    origin: bool = True,
    whole: bool = True,
    chunk_words: int = CHUNK_WORDS,
    classes: int | None = None,
) -> Share:
    """Assign every frame to one node (collective over the world).

    Parameters
    ----------
    world
        All ranks.
    cached
        What this node's store holds; only the node's first rank is asked. None: nothing.
    frames
        Frame numbers of the selection, or what is left of it, the same on every rank; `step` may be negative.
    origin
        Whether frames can be read from the origin, the same on every rank.
    whole
        Whether every frame must be somewhere, the same on every rank. If not, frames that lie in no cache are left out
        where there is no origin.
    chunk_words
        Bitmap words that are exchanged and decided at a time, the same on every rank.
    classes
        Into how many classes patterns may fold the selection, the same on every rank; 0: patterns are not sought.
        None: as many as are cheaper than bitmaps.

    Returns
    -------
    Share
        This node's part.

    Raises
    ------
    TrajectoryError
        On every rank, if the origin cannot be reached and frames lie in no cache.
    UsageError
        If `frames` holds a negative number.
    """
    if len(frames) and min(frames[0], frames[-1]) < 0:
        raise UsageError(f"frames must not be negative, got {frames}")
    if classes is None:
        classes = len(frames) // FRAMES_PER_CLASS if len(frames) >= FEW else 0
    leader: _Leader | None = None
    if world.leaders is not None:
        request = _Request(frames, origin, whole, chunk_words, classes if frames else 0)
        leader = _Leader(world, cached or NOTHING, request)
    # Patterns give a share as small as they are; bitmaps are made where they stay, in the node's memory.
    n_shared, in_pieces = world.node.bcast(leader and leader.begin())
    shared = world.share_words(n_shared)
    told: _Outcome = world.node.bcast(leader and leader.finish(shared.words))
    if told.error:
        shared.close()
        raise TrajectoryError(told.error)
    return Share(
        frames=frames,
        positions=Pieces.of_words(shared.words) if in_pieces else Bits(shared.words, n_words(len(frames))),
        shared=shared,
        counter=world.make_counter(),
        ranks=world.node.size,
        counts=told.counts,
        rounds=told.rounds,
        seconds=told.seconds,
        surplus=leader.reduced.surplus if leader else list,
    )


class _Leader:
    """The part of a node's first rank, in two steps, between which the node makes room for its share.

    Attributes
    ----------
    reduced
        What came of the rounds for this node.
    """

    reduced: Reduced

    def __init__(self, world: World, cached: Cached, request: _Request) -> None:
        self._started = time.perf_counter()
        self._leaders = Leaders(world)
        self._request = request
        self._by_patterns: ByPatterns | None = None
        self._error = ""
        self._here = NodeFrames(cached, request.frames, request.classes)
        told = (world.node.size, cached.identity, self._here.promising())
        weights, identities, promising = zip(*self._leaders.comm.allgather(told), strict=True)
        if not _first_of_its_kind(identities, self._leaders.node):
            self._here = NodeFrames(NOTHING, request.frames, request.classes)
        self._weights: Sequence[int] = weights
        self._limits = [-(-ENOUGH * len(request.frames) * weight // sum(weights)) for weight in weights]
        self._promising = all(promising)

    def begin(self) -> tuple[int, bool]:
        """Reduce by patterns if that works; return how many words the share needs, and whether it is in pieces."""
        if self._promising:
            self._by_patterns = by_patterns(self._leaders, self._here, self._limits, self._request.classes)
        if self._by_patterns is not None:
            self._divide(self._by_patterns)
            return len(self._by_patterns.share), True
        return Bits.n_words(n_words(len(self._request.frames))), False

    def finish(self, words: Words) -> _Outcome:
        """Fill the share's `words`, after reducing by bits if need be."""
        request, leaders = self._request, self._leaders
        if self._by_patterns is not None:
            words[:] = self._by_patterns.share
        else:
            n = len(request.frames)
            rules = Rules(n, n, self._limits, request.origin, request.chunk_words)
            self._divide(ByBits(leaders, self._here, Bits(words, n_words(n)), rules))
        own = self._here.seconds
        seconds = {"sets": own, "rounds": time.perf_counter() - self._started - own}
        return _Outcome(self._error, self._counts, dict(leaders.rounds), seconds)

    def _divide(self, reduced: Reduced) -> None:
        """Take this node's part of what nobody holds."""
        self.reduced = reduced
        every = self._leaders.comm.allgather((reduced.native, reduced.alien, reduced.contested))
        native, alien, contested = map(sum, zip(*every, strict=True))
        self._counts = {"native": native, "alien": alien, "residue": contested}
        if reduced.n_nowhere and not self._request.origin:
            if self._request.whole:
                self._error = _unreachable(reduced, self._request.frames)
            reduced.take(0, 0)  # nobody reads them
            return
        self._counts["residue"] += reduced.n_nowhere
        parts = fill_evenly([sum(claimed) for claimed in every], self._weights, reduced.n_nowhere)
        node = self._leaders.node
        reduced.take(sum(parts[:node]), parts[node])


def _first_of_its_kind(identities: Sequence[str | None], node: int) -> bool:
    """Tell whether no earlier node sees the same store."""
    return identities[node] is None or identities.index(identities[node]) == node


def fill_evenly(loads: Sequence[int], weights: Sequence[int], amount: int) -> list[int]:
    """Divide `amount` so that loads become as even as they can, as water fills vessels to one level.

    Parameters
    ----------
    loads
        What each has already.
    weights
        How much more than the others each can take; positive.
    amount
        What is to be divided.

    Returns
    -------
    list of int
        Parts that add up to `amount`; no part goes to one whose load per weight is above the level.
    """
    by_level = sorted(range(len(loads)), key=lambda i: loads[i] / weights[i])
    volume, width = amount, 0
    under: list[int] = []
    for i in by_level:
        # The level so far is volume / width; a vessel whose load reaches it stays dry, as do all after it.
        if under and loads[i] * width >= volume * weights[i]:
            break
        under.append(i)
        volume += loads[i]
        width += weights[i]
    parts = [0] * len(loads)
    for i in under:
        parts[i] = max(0, volume * weights[i] // width - loads[i])
    for i in under[: amount - sum(parts)]:
        parts[i] += 1
    return parts


def _unreachable(reduced: Reduced, frames: Selection) -> str:
    """Say which frames lie nowhere."""
    count = reduced.n_nowhere
    named = ", ".join(str(frames[int(p)]) for p in reduced.nowhere(NAMED)) + (", ..." if count > NAMED else "")
    return (
        f"{count} of {len(frames)} frames lie in no cache, and the origin is not read: frame {named}; make it readable "
        "again, or name it as the trajectory if you gave a dataset's name, or select frames that are cached"
    )
