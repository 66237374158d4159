"""The Zazen protocol: who reads which frame."""

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
from himach.zazen.rounds import CHUNK_WORDS, Claims, Leaders, negotiate
from himach.zazen.selection import mark_frames, n_words
from himach.zazen.share import DIRECTORY_WORDS, Share

__all__ = ["assign", "fill_evenly"]

ENOUGH = 2  # times its part of all frames: what a node holds beyond it, others read
NAMED = 5  # frames that an error message names


@dataclass
class _Outcome:
    """What a leader tells the ranks of its node, and what it keeps for itself."""

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
    words = world.share_words(max(1, n_words(len(frames))))
    n_blocks = -(-len(words) // DIRECTORY_WORDS)
    directory = world.share_words(n_blocks + 1).view(np.int64)
    ranks = world.node.allgather(world.comm.rank)
    outcome, surplus = None, []
    if world.leaders is not None:
        outcome, surplus = _lead(world, cached or NOTHING, frames, origin, chunk_words, words, directory, len(ranks))
    outcome = world.node.bcast(outcome)
    if outcome.error:
        raise TrajectoryError(outcome.error)
    return Share(
        frames=frames,
        words=words,
        directory=directory,
        counter=world.make_counter(),
        ranks=len(ranks),
        counts=outcome.counts,
        rounds=outcome.rounds,
        seconds=outcome.seconds,
        surplus=surplus,
    )


def _lead(
    world: World,
    cached: Cached,
    frames: range,
    origin: bool,
    chunk_words: int,
    words: Words,
    directory: npt.NDArray[np.int64],
    ranks: int,
) -> tuple[_Outcome, list[tuple[int, Words]]]:
    """Run the protocol for this node: fill its `words` and their `directory`."""
    leaders = Leaders(world)
    started = time.perf_counter()
    everyone = leaders.comm.allgather((ranks, cached.identity))
    weights = [weight for weight, _ in everyone]
    alien = np.zeros_like(words)
    if _first_of_its_kind([identity for _, identity in everyone], leaders.node):
        mark_frames(cached.native, frames, words)
        mark_frames(cached.alien, frames, alien)
    leaders.comm.barrier()  # so that waiting for another node's bitmaps does not count as rounds
    negotiated = time.perf_counter()
    limit = -(-ENOUGH * len(frames) * weights[leaders.node] // sum(weights))
    try:
        claims = negotiate(leaders, words, alien, len(frames), limit, origin, chunk_words)
    finally:
        leaders.close()
    native, singles, contested = leaders.total(
        np.array([claims.native, claims.alien, claims.contested], dtype=np.int64)
    )
    n_residue = int(claims.residue_counts.sum())
    outcome = _Outcome(counts={"native": int(native), "alien": int(singles), "residue": int(contested) + n_residue})
    if n_residue and not origin:
        outcome.error = _unreachable(claims, frames, n_residue)
    else:
        _take_residue(claims, leaders.comm.allgather(claims.size), weights, leaders.node, chunk_words)
        block_counts(words, DIRECTORY_WORDS, directory[1:])
        np.cumsum(directory[1:], out=directory[1:])
    outcome.rounds = dict(leaders.rounds)
    outcome.seconds = {"bitmaps": negotiated - started, "rounds": time.perf_counter() - negotiated}
    return outcome, claims.surplus


def _first_of_its_kind(identities: Sequence[str | None], node: int) -> bool:
    """Tell whether no earlier node sees the same store."""
    return identities[node] is None or identities.index(identities[node]) == node


def _take_residue(claims: Claims, loads: Sequence[int], weights: Sequence[int], node: int, chunk_words: int) -> None:
    """Add this node's contiguous run of the residue to its share."""
    parts = fill_evenly(loads, weights, int(claims.residue_counts.sum()))
    start = sum(parts[:node])
    stop = start + parts[node]
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
    volume, width, under = amount, 0, []
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
