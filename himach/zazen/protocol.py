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

import time
from collections.abc import Sequence
from contextlib import closing

from himach.errors import TrajectoryError, UsageError
from himach.ranks.communicator import World
from himach.zazen.claims import Bits, Claims, n_words
from himach.zazen.node_frames import NOTHING, Cached, Division, Selection, Share, count_chunks, frame_bitmaps
from himach.zazen.rounds import CHUNK_WORDS, Leaders, Negotiation

MAX_SHARE_FACTOR = 2  # times a node's part of all frames, beyond which others read its frames
MAX_NAMED_FRAMES = 5  # frames named in an error message


def assign(
    world: World,
    cached: Cached | None,
    frames: Selection,
    *,
    origin: bool = True,
    whole: bool = True,
    chunk_words: int = CHUNK_WORDS,
) -> Share:
    """Assign every frame to one node (collective); return this node's share.

    `cached` is this node's store, needed on the node's first rank only; all other arguments are the same on every rank.
    Without an origin, frames in no cache raise TrajectoryError on every rank; unless `whole`, they are left out.
    """
    if len(frames) and min(frames[0], frames[-1]) < 0:
        raise UsageError(f"frames must not be negative, got {frames}")
    n = n_words(len(frames))
    positions = Bits(world.share_words(Bits.n_words(n)), n)
    leader = None
    if world.leaders is not None:
        leader = _divide(world, cached or NOTHING, frames, positions, origin, whole, chunk_words)
    division: Division = world.node.bcast(leader and leader[1])
    if division.error:
        raise TrajectoryError(division.error)
    return Share(
        frames=frames,
        positions=positions,
        counter=world.make_counter(),
        ranks=world.node.size,
        division=division,
        shed=leader[0].surplus if leader else list,
    )


def _divide(
    world: World, cached: Cached, frames: Selection, share: Bits, origin: bool, whole: bool, chunk_words: int
) -> tuple[Claims, Division]:
    """Run the rounds on a node's first rank, and write this node's frames to `share`."""
    started = time.perf_counter()
    leaders = Leaders(world)
    weights, identities = zip(*leaders.comm.allgather((world.node.size, cached.identity)), strict=True)
    marking = time.perf_counter()
    if cached.identity is not None and identities.index(cached.identity) < leaders.node:
        cached = NOTHING  # an earlier node sees the same store
    natives, aliens = frame_bitmaps(cached, frames, share.bitmap)
    counts = count_chunks(natives, aliens, chunk_words)
    sets = time.perf_counter() - marking

    limits = [-(-MAX_SHARE_FACTOR * len(frames) * weight // sum(weights)) for weight in weights]
    with closing(leaders):
        claims = Negotiation(leaders, aliens, share, len(frames), limits, origin, chunk_words).run(counts)
    by_node = leaders.comm.allgather((claims.native, claims.alien, claims.contested))
    native, alien, contested = map(sum, zip(*by_node, strict=True))
    division = Division(counts={"native": native, "alien": alien, "residue": contested})
    start = amount = 0  # without an origin, no node reads frames that lie nowhere
    if origin:
        division.counts["residue"] += claims.n_nowhere
        parts = fill_evenly([sum(claimed) for claimed in by_node], weights, claims.n_nowhere)
        start, amount = sum(parts[: leaders.node]), parts[leaders.node]
    elif claims.n_nowhere and whole:
        division.error = _unreachable(claims, frames)
    claims.take(start, amount)
    division.rounds = dict(leaders.rounds)
    division.seconds = {"sets": sets, "rounds": time.perf_counter() - started - sets}
    return claims, division


def fill_evenly(loads: Sequence[int], weights: Sequence[int], amount: int) -> list[int]:
    """Divide `amount` so that loads per weight become as even as possible, as water fills vessels to one level."""
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
