"""The Zazen protocol: who reads which frame.

There is no server that knows what is cached where. Each node turns what its own store holds of the selection into two
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

`assign()` is the protocol: rounds are in `himach.zazen.rounds`, what a node gets is a `himach.zazen.share.Share`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from himach.comm import Words, World
from himach.errors import TrajectoryError, UsageError
from himach.zazen.bitmaps import block_counts, copy_some, decode
from himach.zazen.cached import NOTHING, Cached
from himach.zazen.rounds import CHUNK_WORDS, Claims, Leaders, Rules, negotiate
from himach.zazen.selection import mark_frames, n_words
from himach.zazen.share import DIRECTORY_WORDS, Share

__all__ = ["assign", "fill_evenly"]

ENOUGH = 2  # times its part of all frames: what a node holds beyond it, others read
NAMED = 5  # frames that an error message names


@dataclass(frozen=True)
class _Request:
    """The arguments of `assign()` that are the same on every rank."""

    frames: range
    origin: bool
    chunk_words: int


@dataclass
class _Outcome:
    """What a leader tells the ranks of its node."""

    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def assign(
    world: World, cached: Cached | None, frames: range, *, origin: bool = True, chunk_words: int = CHUNK_WORDS
) -> Share:
    """Assign every frame to one node (collective over the world).

    Parameters
    ----------
    world
        All ranks.
    cached
        What this node's store holds; only the node's first rank is asked. None: nothing.
    frames
        Frame numbers of the selection, the same on every rank; `step` may be negative.
    origin
        Whether frames can be read from the origin, the same on every rank.
    chunk_words
        Bitmap words that are exchanged and decided at a time, the same on every rank.

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
    n = max(1, n_words(len(frames)))
    shared = world.share_words(n + 1 - (-n // DIRECTORY_WORDS))
    words, directory = shared.words[:n], shared.words[n:].view(np.int64)
    outcome: _Outcome | None = None
    surplus: list[tuple[int, Words]] = []
    if world.leaders is not None:
        request = _Request(frames, origin, chunk_words)
        outcome, surplus = _lead(world, cached or NOTHING, request, words, directory)
    told: _Outcome = world.node.bcast(outcome)
    if told.error:
        shared.close()
        raise TrajectoryError(told.error)
    return Share(
        frames=frames,
        words=words,
        directory=directory,
        shared=shared,
        counter=world.make_counter(),
        ranks=world.node.size,
        counts=told.counts,
        rounds=told.rounds,
        seconds=told.seconds,
        surplus=surplus,
    )


def _lead(
    world: World, cached: Cached, request: _Request, words: Words, directory: npt.NDArray[np.int64]
) -> tuple[_Outcome, list[tuple[int, Words]]]:
    """Run the protocol for this node: fill its `words` and their `directory`."""
    leaders = Leaders(world)
    frames = request.frames
    started = time.perf_counter()
    everyone = leaders.comm.allgather((world.node.size, cached.identity))
    weights = [weight for weight, _ in everyone]
    words[:] = directory[:] = 0
    alien = np.zeros_like(words)
    if _first_of_its_kind([identity for _, identity in everyone], leaders.node):
        mark_frames(cached.native, frames, words)
        mark_frames(cached.alien, frames, alien)
    leaders.comm.barrier()  # so that waiting for another node's bitmaps does not count as rounds
    marked = time.perf_counter()
    limits = [-(-ENOUGH * len(frames) * weight // sum(weights)) for weight in weights]
    try:
        claims = negotiate(leaders, words, alien, Rules(len(frames), limits, request.origin, request.chunk_words))
    finally:
        leaders.close()
    found = leaders.total(np.array([claims.native, claims.alien, claims.contested], dtype=np.int64))
    native, single, contested = found.tolist()
    n_nowhere = int(claims.residue_counts.sum())
    outcome = _Outcome(counts={"native": native, "alien": single, "residue": contested + n_nowhere})
    if n_nowhere and not request.origin:
        outcome.error = _unreachable(claims, frames, n_nowhere)
    else:
        parts = fill_evenly(leaders.comm.allgather(claims.size), weights, n_nowhere)
        _take_residue(claims, sum(parts[: leaders.node]), parts[leaders.node], request.chunk_words)
        block_counts(words, DIRECTORY_WORDS, directory[1:])
        np.cumsum(directory[1:], out=directory[1:])
    outcome.rounds = dict(leaders.rounds)
    outcome.seconds = {"bitmaps": marked - started, "rounds": time.perf_counter() - marked}
    return outcome, claims.surplus


def _first_of_its_kind(identities: Sequence[str | None], node: int) -> bool:
    """Tell whether no earlier node sees the same store."""
    return identities[node] is None or identities.index(identities[node]) == node


def _take_residue(claims: Claims, start: int, amount: int, chunk_words: int) -> None:
    """Add a contiguous run of the residue, `amount` frames from number `start` on, to the node's share."""
    stop = start + amount
    before = 0
    for i, count in enumerate(claims.residue_counts.tolist()):
        low, high = max(start, before), min(stop, before + count)
        if low < high:
            cut = slice(i * chunk_words, (i + 1) * chunk_words)
            copy_some(claims.residue[cut], claims.share[cut], low - before, high - low)
        before += count


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


def _unreachable(claims: Claims, frames: range, count: int) -> str:
    """Say which frames lie nowhere."""
    positions = decode(claims.residue, 0, 0, min(count, NAMED))
    named = ", ".join(str(frames[int(p)]) for p in positions) + (", ..." if count > NAMED else "")
    return (
        f"{count} of {len(frames)} frames lie in no cache, and the origin cannot be reached: frame {named}; "
        "make the origin readable again, or select frames that are cached"
    )
