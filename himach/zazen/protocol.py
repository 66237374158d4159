"""The Zazen protocol: who reads which frame.

No server knows what is cached where. Each node's store marks its frames of the selection in two bitmaps, native and
alien, one bit per position. The leaders of the nodes reduce these bitmaps over all nodes. Every node then decides by
itself, from the reduced bitmaps and its own, which frames it reads:

1. The node that holds a native frame reads it. Reducing native bitmaps with bitwise or tells every node which frames
   are taken.
2. A remaining frame that is alien on exactly one node is read by that node. Reducing saturating two-bit counts of
   holders (00 none, 01 one, 10 more) tells a holder whether it is the only one.
3. The residue is divided. A frame with several alien copies goes to one of their holders, and the other copies are
   surplus. A frame on no node is read from the origin: all nodes know the same bitmap of such frames and each node's
   load, so each takes a contiguous run of them that makes loads as even as possible.

Two exceptions keep this safe and even. If the native counts of all nodes sum to more than the bits of their union, a
frame is native on several nodes: these are counted with two bits too, and one holder reads. A node that holds more than
twice its part leaves the excess to others while the origin can be reached: natives before round one, so that an alien
copy elsewhere may claim them, aliens after round two.

`assign()` runs the protocol and returns a `himach.zazen.node_frames.Share`; `himach.zazen.rounds` has the exchanges.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from himach.errors import TrajectoryError, UsageError
from himach.ranks.communicator import World
from himach.zazen.claims import Bits, Claims, n_words
from himach.zazen.node_frames import NOTHING, Cached, Division, Selection, Share, count_chunks, frame_bitmaps
from himach.zazen.rounds import CHUNK_WORDS, Leaders, Rules, negotiate

MAX_SHARE_FACTOR = 2  # times a node's part of all frames, beyond which others read its frames
MAX_NAMED_FRAMES = 5  # frames named in an error message


@dataclass(frozen=True)
class _Request:
    """The arguments of `assign()` that are the same on every rank."""

    frames: Selection
    origin: bool
    whole: bool
    chunk_words: int


def assign(
    world: World,
    cached: Cached | None,
    frames: Selection,
    *,
    origin: bool = True,
    whole: bool = True,
    chunk_words: int = CHUNK_WORDS,
) -> Share:
    """Assign every frame to one node (collective over the world).

    Parameters
    ----------
    world
        All ranks.
    cached
        Frames in this node's store; used on the node's first rank only. None: no frames.
    frames
        Frame numbers of the selection, or the rest of it, the same on every rank; `step` may be negative.
    origin
        Whether frames can be read from the origin, the same on every rank.
    whole
        Whether every frame must be available, the same on every rank. If not, frames in no cache are left out when
        there is no origin.
    chunk_words
        Bitmap words exchanged and decided at a time, the same on every rank.

    Returns
    -------
    Share
        This node's part.

    Raises
    ------
    TrajectoryError
        On every rank, if `origin` is false, `whole` is true, and frames are in no cache.
    UsageError
        If `frames` holds a negative number.
    """
    if len(frames) and min(frames[0], frames[-1]) < 0:
        raise UsageError(f"frames must not be negative, got {frames}")
    leader = None if world.leaders is None else _Leader(world, _Request(frames, origin, whole, chunk_words))
    n = n_words(len(frames))
    positions = Bits(world.share_words(Bits.n_words(n)), n)
    outcome: Division = world.node.bcast(leader and leader.fill(positions, cached or NOTHING))
    if outcome.error:
        raise TrajectoryError(outcome.error)
    return Share(
        frames=frames,
        positions=positions,
        counter=world.make_counter(),
        ranks=world.node.size,
        division=outcome,
        surplus=leader.claims.surplus if leader else list,
    )


class _Leader:
    """The part of a node's first rank.

    Attributes
    ----------
    claims
        This node's result of the rounds.
    """

    claims: Claims

    def __init__(self, world: World, request: _Request) -> None:
        self._started = time.perf_counter()
        self._leaders = Leaders(world)
        self._ranks = world.node.size
        self._request = request

    def fill(self, share: Bits, cached: Cached) -> Division:
        """Run the rounds and write this node's frames to `share`."""
        request, leaders = self._request, self._leaders
        weights, identities = zip(*leaders.comm.allgather((self._ranks, cached.identity)), strict=True)
        started = time.perf_counter()
        own = cached if _first_of_its_kind(identities, leaders.node) else NOTHING
        native, alien = frame_bitmaps(own, request.frames, share.bitmap)
        counts = count_chunks(native, alien, request.chunk_words)
        sets = time.perf_counter() - started

        n = len(request.frames)
        limits = [-(-MAX_SHARE_FACTOR * n * weight // sum(weights)) for weight in weights]
        rules = Rules(n, limits, request.origin, request.chunk_words)
        self.claims = negotiate(leaders, alien, counts, share, rules)
        outcome = self._divide(weights)
        outcome.rounds = dict(leaders.rounds)
        outcome.seconds = {"sets": sets, "rounds": time.perf_counter() - self._started - sets}
        return outcome

    def _divide(self, weights: Sequence[int]) -> Division:
        """Take this node's part of the frames that no node holds."""
        claims, request = self.claims, self._request
        all_claims = self._leaders.comm.allgather((claims.native, claims.alien, claims.contested))
        native, alien, contested = map(sum, zip(*all_claims, strict=True))
        counts = {"native": native, "alien": alien, "residue": contested}
        if claims.n_nowhere and not request.origin:
            error = _unreachable(claims, request.frames) if request.whole else ""
            claims.take(0, 0)  # no node reads them
            return Division(error, counts)
        counts["residue"] += claims.n_nowhere
        parts = fill_evenly([sum(claimed) for claimed in all_claims], weights, claims.n_nowhere)
        node = self._leaders.node
        claims.take(sum(parts[:node]), parts[node])
        return Division("", counts)


def _first_of_its_kind(identities: Sequence[str | None], node: int) -> bool:
    """Return whether no earlier node sees the same store."""
    return identities[node] is None or identities.index(identities[node]) == node


def fill_evenly(loads: Sequence[int], weights: Sequence[int], amount: int) -> list[int]:
    """Divide `amount` so that loads per weight become as even as possible, as water fills vessels to one level.

    Parameters
    ----------
    loads
        Present loads.
    weights
        Relative capacities; positive.
    amount
        Total to divide.

    Returns
    -------
    list of int
        Parts that add up to `amount`; zero where the load per weight is above the level.
    """
    by_level = sorted(range(len(loads)), key=lambda i: loads[i] / weights[i])
    volume, width = amount, 0
    under: list[int] = []
    for i in by_level:
        # The level so far is volume / width; a vessel at or above it gets nothing, nor do those after it.
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


def _unreachable(claims: Claims, frames: Selection) -> str:
    """Return the error message that names frames on no node."""
    count = claims.n_nowhere
    named = ", ".join(str(frames[int(p)]) for p in claims.nowhere(MAX_NAMED_FRAMES)) + (
        ", ..." if count > MAX_NAMED_FRAMES else ""
    )
    return (
        f"{count} of {len(frames)} frames lie in no cache, and the origin is not read: frame {named}; make it readable "
        "again, or name it as the trajectory if you gave a dataset's name, or select frames that are cached"
    )
